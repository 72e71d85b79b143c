"""A policy without a model, for tests: it says what it is told to."""

import asyncio

from agentkit.rollouts.policy import Policy, Request, Sample


class EndsAt:
    """The part of a tokenizer that engines read."""

    eos_token_id = 5


class Says(Policy):
    """Says its turns, the last for ever, closed by ``end``. Log-probabilities count down from 0."""

    name = "says"

    def __init__(self, tokenizer, *turns, end=None):
        self.tokenizer, self.turns, self.asked = tokenizer, turns, []
        self.end_text = tokenizer.eos_token if end is None else end

    async def sample(self, request: Request) -> Sample:
        await asyncio.sleep(0)
        self.asked.append(self.tokenizer.decode(request.ids))
        text = self.turns[min(request.turn, len(self.turns) - 1)] + self.end_text
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"][: request.max_new_tokens]
        return Sample(ids, [-float(i) for i in range(len(ids))])
