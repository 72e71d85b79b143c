"""TRL's configuration of GRPO from a recipe: batches, optimiser, schedule, clipping, loss.

Leaves out what the loss is made of (update, advantages).
"""

from pathlib import Path

from trl import GRPOConfig

from agentkit.recipe import Recipe
from agentkit.runs.topology import patience
from agentkit.training.processes import check_processes
from agentkit.training.trainers import on_one_card, quiet_trainer


def grpo_config(recipe: Recipe, out: Path) -> GRPOConfig:
    """TRL's configuration, every default that matters, or that Unsloth changes, set explicitly."""
    check_processes(recipe)
    rollouts = recipe.prompts_per_step * recipe.group_size // recipe.processes  # whole groups in each process
    size = rollouts // recipe.minibatches if recipe.micro_batch_tokens else recipe.micro_batch
    return on_one_card(
        GRPOConfig(
            output_dir=str(out),
            max_steps=recipe.steps,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=rollouts // size // recipe.minibatches,
            steps_per_generation=rollouts // size,
            num_generations=recipe.group_size,
            num_iterations=recipe.num_iterations,
            learning_rate=recipe.learning_rate,
            lr_scheduler_type=recipe.lr_schedule,
            warmup_steps=recipe.warmup_steps,
            optim="adamw_torch",
            weight_decay=0.0,
            max_grad_norm=recipe.max_grad_norm,
            temperature=recipe.temperature,
            max_completion_length=recipe.max_tokens,
            beta=recipe.beta,
            epsilon=recipe.clip_epsilon,
            epsilon_high=recipe.clip_epsilon_high or recipe.clip_epsilon,
            delta=recipe.dual_clip or None,
            importance_sampling_level=recipe.importance_level,
            loss_type=recipe.loss_type,
            scale_rewards="group",
            mask_truncated_completions=False,
            vllm_importance_sampling_correction=True,
            ddp_timeout=int(patience(recipe)),
            router_aux_loss_coef=0.0,  # our log-probabilities come without a router's loss
            logging_nan_inf_filter=True,
            torch_empty_cache_steps=None,
            # of a sweep its arm and seed; trackio would go on with an earlier run of that name
            run_name="/".join(out.absolute().parts[-5:-2]) if recipe.report_to == "wandb" else None,
            **(quiet_trainer(recipe) | {"report_to": recipe.report_to}),
        )
    )
