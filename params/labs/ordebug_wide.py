"""OR-debug's larger programs: three to five variables, eight to fifteen lines."""

from functools import partial

from ordebug import *

families = {"ordebug": Family(partial(draft, wide=True), RepairEnvironment, measures=MEASURES)}
