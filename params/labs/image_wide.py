"""The image agent with more facts in a prompt, and three passages a search, as in Search-R1."""

from functools import partial

from image import *

families = {
    "image": Family(partial(draft, wide=True), partial(PictureEnvironment, top_k=3), measures=MEASURES)
}
