"""Names, things and sentences of the arithmetic task.

Answers depend on the numbers alone. Every sentence has several wordings, so two models can differ and both be right.
"""

NAMES = (
    "Ada Ben Cora Dan Eva Finn Gina Hugo Ida Jack Kim Leo Mia Noah Olga Paul Quinn Rosa Sam Tara Uma Vera "
    "Will Xena Yara Zoe Amir Bela Chen Dora Emil Fay Gus Hana Ivan Jade Karl Lily Max Nora Omar Pia Ravi "
    "Sara Tom Ugo Vic Wendy"
).split()

THINGS = (
    "apples books coins cards shells stamps pens beads cups plates stones marbles stickers flowers pears "
    "plums nuts eggs cakes tickets boxes buttons keys lamps hats socks ropes bricks tiles nails screws "
    "toys balls kites drums maps letters photos candles spoons forks bottles jars bags ribbons badges "
    "seeds leaves"
).split()

PLACES = ("at home", "in the shop", "at school", "in the garden", "by the lake", "in the yard", "at work", "in town")

START = (
    "{name} has {n} {things} {place}.",
    "{name} starts with {n} {things}.",
    "At first, {name} owns {n} {things}.",
    "There are {n} {things} that belong to {name}.",
    "{name} keeps {n} {things} {place}.",
    "In the morning {name} counts {n} {things}.",
)

EVENTS = {
    "+": (
        "{name} buys {k} more.",
        "A friend gives {name} {k} more.",
        "{name} finds {k} {things} {place}.",
        "Then {name} gets {k} {things} as a gift.",
        "{k} more arrive for {name}.",
        "{name} wins {k} in a game.",
        "Later {name} collects {k} {things}.",
    ),
    "-": (
        "{name} gives away {k}.",
        "{name} loses {k} {things} {place}.",
        "Then {name} sells {k}.",
        "{k} of the {things} of {name} break.",
        "{name} throws away {k}.",
        "A thief takes {k} from {name}.",
        "Later {name} hands {k} {things} to a friend.",
    ),
    "x": (
        "Then the {things} of {name} become {k} times as many.",
        "{name} trades them and now has {k} times as many {things}.",
        "A rich uncle makes it {k} times as many for {name}.",
        "With luck, {name} ends up with {k} times that number.",
        "{name} swaps each one for {k} {things}.",
    ),
}

DISTRACTORS = (
    "{other} has {n} {other_things}.",
    "There are also {n} {other_things} {place}.",
    "{other} is {n} years old.",
    "The shop sells {other_things} for {n} cents.",
    "It takes {n} minutes to walk there.",
)

QUESTIONS = {
    "total": (
        "How many {things} does {name} have now?",
        "How many {things} are left with {name} in the end?",
        "What is the number of {things} of {name} now?",
    ),
    "together": (
        "How many {things} do {name} and {other} have together?",
        "How many {things} is that in all for {name} and {other}?",
    ),
    "difference": (
        "How many more {things} does {name} have than {other}?",
        "By how many {things} is {name} ahead of {other}?",
    ),
}

SOLUTION_START = (
    "{name} starts with {n}.",
    "First, {name} has {n} {things}.",
    "We begin with {n} for {name}.",
    "At the start there are {n} {things}.",
)

SOLUTION_STEPS = {
    "+": (
        "Adding {k} gives {a} + {k} = {b}.",
        "Then {name} gets {k} more, so {a} + {k} = {b}.",
        "After that, {a} + {k} = {b} {things}.",
        "Next we add: {a} + {k} = {b}.",
        "With {k} more, it is {a} + {k} = {b}.",
    ),
    "-": (
        "Taking away {k} leaves {a} - {k} = {b}.",
        "Then {name} has {k} less, so {a} - {k} = {b}.",
        "After that, {a} - {k} = {b} {things}.",
        "Next we subtract: {a} - {k} = {b}.",
        "Without those {k}, it is {a} - {k} = {b}.",
    ),
    "x": (
        "Multiplying by {k} gives {a} x {k} = {b}.",
        "Then {name} has {k} times as many, so {a} x {k} = {b}.",
        "After that, {a} x {k} = {b} {things}.",
        "Next we multiply: {a} x {k} = {b}.",
        "Now {k} times that is {a} x {k} = {b}.",
    ),
}

SOLUTION_COMBINE = {
    "together": (
        "Together they have {a} + {k} = {b}.",
        "In all, that makes {a} + {k} = {b}.",
        "The sum is {a} + {k} = {b} {things}.",
    ),
    "difference": (
        "The difference is {a} - {k} = {b}.",
        "So {name} has {a} - {k} = {b} more.",
        "That means {a} - {k} = {b} {things} more.",
    ),
}

CLOSING = "The answer is {answer}."
