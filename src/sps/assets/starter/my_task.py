"""Two numbers that make more than a target. Change this file into your own task."""

import re


def judge(problem, text):
    """What an answer is worth: True or False, or a number from 0 to 1, where 1 is right."""
    numbers = read(text)
    return len(numbers) == 2 and sum(numbers) > problem.meta["target"]


def mode(problem, text):
    """Which of the distinct solutions a right answer is; leave it out if there is one alone."""
    return " ".join(map(str, sorted(read(text))))


def read(text):
    """The first two numbers of a text."""
    return [int(number) for number in re.findall(r"\d{1,3}", text)[:2]]
