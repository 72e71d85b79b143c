"""Trajectories to and from three formats of others, so that runs made elsewhere can be compared here.

``messages`` data sets (Hugging Face, OpenAI's chat form), the Parquet files that TRL's ``log_completions``
writes, and logs of inspect_ai (.json and .eval). Each of them holds text; our records hold tokens as well.
What we write therefore carries the whole record in one more column (or in the sample's metadata), and reads
back equal, bit for bit. What others wrote is read as far as it goes; ``dropped`` reports the rest. Leaves out
pictures and sound.
"""

from agentkit.exchange.conversation import Imported
from agentkit.exchange.inspect_log import from_inspect, write_inspect
from agentkit.exchange.tables import from_messages, from_trl, to_messages, write_messages, write_trl

__all__ = [
    "Imported",
    "from_inspect",
    "from_messages",
    "from_trl",
    "to_messages",
    "write_inspect",
    "write_messages",
    "write_trl",
]
