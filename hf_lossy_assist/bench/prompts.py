"""Openings for a model that tells stories."""

STORY_OPENINGS = (
    "Once upon a time, there was a little girl named Lily.",
    "Once upon a time, there was a big brown bear who lived in the forest.",
    "One day, a boy named Tim went to the park with his mom.",
    "Tom and Sue were best friends. They liked to play",
    "The little cat was very sad because",
    "One sunny morning, a small bird wanted to fly",
    "Ben had a new red ball. He took it outside and",
    "There was once an old man who had a magic box.",
    "Mia saw a big dog near the house. She was scared, but",
    "It was raining, so the children had to stay inside.",
    "A little fish lived in a blue lake. Every day",
    "Sam wanted to bake a cake for his grandma.",
    "Once there was a tiny mouse who was always hungry.",
    "Anna lost her favorite doll. She looked under the bed and",
    "In a small town, there was a shop full of toys.",
    "The sun was hot and Max wanted to swim.",
    'A frog sat on a rock. "Hello," said the frog,',
    "Lucy found a shiny key in the garden.",
    "One night, the moon was very bright and",
    "Jack and his dad went to the farm to see the animals.",
)
