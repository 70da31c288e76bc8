"""Sentences, names and comments of the programs task: what a program does not depend on.

Several wordings stand for every part of a description, and several pieces of Python for every part of a program.
``{v}`` is the name of a list's element, and ``{k}`` a number.
"""

FUNCTIONS = ("solve", "run", "f", "compute", "answer", "process", "work", "main")
LISTS = ("xs", "nums", "values", "items", "data", "a", "numbers", "seq")
ELEMENTS = ("x", "n", "v", "item", "num", "value", "e", "y")
KEPT = ("kept", "out", "picked", "res", "b", "found", "chosen", "left")
TOTALS = ("total", "result", "acc", "s", "r", "t", "amount", "state")

SAID_PARTS = {
    "all": ("",),
    "skip": ("Skip the first {k}.", "Leave out the first {k}."),
    "first": ("Look at the first {k}.", "Use the first {k}."),
    "last": ("Look at the last {k}.", "Use the last {k}."),
    "cut": ("Skip the last {k}.", "Leave out the last {k}."),
    "second": ("Look at every second one.", "Use every second one."),
}
PARTS = {
    "all": ("{a}",),
    "skip": ("{a}[{k}:]",),
    "first": ("{a}[:{k}]",),
    "last": ("{a}[-{k}:]",),
    "cut": ("{a}[:-{k}]",),
    "second": ("{a}[::2]",),
}

SAID_TESTS = {
    "above": ("greater than {k}", "above {k}"),
    "least": ("at least {k}", "{k} or more"),
    "below": ("less than {k}", "below {k}"),
    "most": ("at most {k}", "{k} or less"),
    "even": ("even",),
    "odd": ("odd",),
    "multiple": ("divisible by {k}", "a multiple of {k}"),
    "other": ("other than {k}", "not {k}"),
}
TESTS = {
    "above": ("{v} > {k}", "{k} < {v}"),
    "least": ("{v} >= {k}", "{k} <= {v}"),
    "below": ("{v} < {k}", "{k} > {v}"),
    "most": ("{v} <= {k}", "{k} >= {v}"),
    "even": ("{v} % 2 == 0", "not {v} % 2"),
    "odd": ("{v} % 2 == 1", "{v} % 2"),
    "multiple": ("{v} % {k} == 0", "not {v} % {k}"),
    "other": ("{v} != {k}", "{k} != {v}"),
}
OPPOSITES = {"above": "most", "least": "below", "below": "least", "most": "above", "even": "odd", "odd": "even"}
SAID_SELECTION = ("Keep what is {tests}.", "Take numbers {tests}.")

SAID_CHANGES = {
    "none": ("",),
    "add": ("Add {k} to each.", "Increase each by {k}."),
    "subtract": ("Subtract {k} from each.", "Decrease each by {k}."),
    "times": ("Multiply each by {k}.", "Take each {k} times."),
    "square": ("Square each.", "Multiply each by itself."),
    "from": ("Subtract each from {k}.", "Take {k} minus each."),
}
CHANGES = {
    "none": ("{v}",),
    "add": ("{v} + {k}", "{k} + {v}"),
    "subtract": ("{v} - {k}",),
    "times": ("{v} * {k}", "{k} * {v}"),
    "square": ("{v} * {v}",),
    "from": ("{k} - {v}",),
}

SAID_RESULTS = {
    "sum": ("Return the sum.", "Add them up."),
    "count": ("Return how many.", "Count them."),
    "largest": ("Return the largest.", "Find the maximum."),
    "smallest": ("Return the smallest.", "Find the minimum."),
    "list": ("Return the list.", "List them."),
    "sorted": ("Return them sorted.", "Sort them."),
    "reversed": ("Return them reversed.", "Reverse them."),
    "first": ("Return the first one.", "Find the first."),
    "last": ("Return the last one.", "Find the last."),
}
RESULTS = {
    "sum": ("sum({b})",),
    "count": ("len({b})",),
    "largest": ("max({b}, default=0)", "max({b}) if {b} else 0"),
    "smallest": ("min({b}, default=0)", "min({b}) if {b} else 0"),
    "list": ("{b}",),
    "sorted": ("sorted({b})",),
    "reversed": ("{b}[::-1]",),
    "first": ("{b}[0] if {b} else 0",),
    "last": ("{b}[-1] if {b} else 0",),
}
# Of a generator, where that will do.
DIRECT_RESULTS = {
    "sum": ("sum({g})",),
    "count": ("sum(1 {loop})", "len([{g}])"),
    "largest": ("max(({g}), default=0)", "max([{g}], default=0)"),
    "smallest": ("min(({g}), default=0)", "min([{g}], default=0)"),
    "list": ("[{g}]",),
    "sorted": ("sorted({g})", "sorted([{g}])"),
    "reversed": ("[{g}][::-1]",),
}
# Before a loop, for each element, and after it.
LOOPS = {
    "sum": (("{t} = 0", "{t} += {e}", "{t}"), ("{t} = 0", "{t} = {t} + {e}", "{t}")),
    "count": (("{t} = 0", "{t} += 1", "{t}"), ("{t} = 0", "{t} = {t} + 1", "{t}"), ("{t} = 0", "{t} = 1 + {t}", "{t}")),
    "first": (("", "return {e}", "0"),),
    "last": (("{t} = 0", "{t} = {e}", "{t}"),),
}

COMMENTS = (
    "keep the numbers {test}",
    "only what is {test}",
    "those {test} count",
    "take everything {test}",
    "{test} is what we want",
    "look for numbers {test}",
)
EXAMPLES = (
    "for example [{numbers}]",
    "e.g. [{numbers}]",
    "such as [{numbers}]",
    "try [{numbers}]",
    "called with [{numbers}]",
    "say [{numbers}]",
)
