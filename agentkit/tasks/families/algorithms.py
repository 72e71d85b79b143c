"""Functions of several lines that family C asks for: what a line of blocks (specifications) cannot say.

Data only. Leaves out drawing, trying and asking for them (code).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A function of several lines, too long to compose in one expression."""

    name: str
    words: str
    takes: str  # a kind in INPUTS
    edges: tuple  # inputs that a careful programmer tries
    values: tuple  # what {k} may be; empty: it has no parameter
    code: str  # the body of f(x)


# fmt: off
ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm("fibonacci", "give the x-th number of the series that starts with 0 and {k}, each the "
              "sum of the two before",
              "count", (0, 1, 2), (1, 2, 3, 4), """
a, b = 0, {k}
for _ in range(x):
    a, b = b, a + b
return a
"""),
    Algorithm("collatz", "count the steps to 1: halve an even number, else multiply it by 3 and add 1",
              "count", (1, 2, 3), (), """
n = 0
while x > 1:
    x = x // 2 if x % 2 == 0 else 3 * x + 1
    n += 1
return n
"""),
    Algorithm("balanced", "say whether the brackets () and [] are balanced",
              "brackets", ("", "(]", "([])", "]["), (), """
stack = []
for c in x:
    if c in '([':
        stack.append(c)
    elif not stack or stack.pop() + c not in ('()', '[]'):
        return False
return not stack
"""),
    Algorithm("runs", "write each run of equal characters as the character and its length",
              "letters", ("", "a", "aabb"), (), """
out = ''
while x:
    n = len(x) - len(x.lstrip(x[0]))
    out += x[0] + str(n)
    x = x[n:]
return out
"""),
    Algorithm("longest_run", "give the length of the longest run of equal items",
              "bits", ([], [1], [1, 1, 0]), (), """
best = n = 0
for i, v in enumerate(x):
    n = n + 1 if i and v == x[i - 1] else 1
    best = max(best, n)
return best
"""),
    Algorithm("best_sum", "give the largest sum of a run of neighbouring items, 0 for the empty run",
              "signed", ([], [-1], [2, -1, 2]), (), """
best = s = 0
for v in x:
    s = max(0, s + v)
    best = max(best, s)
return best
"""),
    Algorithm("rising", "give the length of the longest strictly rising subsequence",
              "numbers", ([], [1, 1], [3, 1, 2]), (), """
n = [1] * len(x)
for i in range(len(x)):
    for j in range(i):
        if x[j] < x[i]:
            n[i] = max(n[i], n[j] + 1)
return max(n, default=0)
"""),
    Algorithm("edits", "give the edit distance to the word {k}",
              "letters", ("", "a", "abc"), ("abc", "bca", "aab", "cab"), """
y = '{k}'
row = list(range(len(y) + 1))
for i, a in enumerate(x):
    new = [i + 1]
    for j, b in enumerate(y):
        new.append(min(row[j] + (a != b), row[j + 1] + 1, new[j] + 1))
    row = new
return row[-1]
"""),
    Algorithm("change", "count the ways to pay x with coins of 1, 2 and {k}",
              "count", (0, 1, 5), (5, 6, 7, 8), """
ways = [1] + [0] * x
for coin in (1, 2, {k}):
    for i in range(coin, x + 1):
        ways[i] += ways[i - coin]
return ways[x]
"""),
    Algorithm("insertion", "x is sorted: give by binary search the first index whose item is at least "
              "{k}, else the length",
              "sorted", ([], [1], [5, 12]), (5, 8, 12), """
low, high = 0, len(x)
while low < high:
    mid = (low + high) // 2
    if x[mid] < {k}:
        low = mid + 1
    else:
        high = mid
return low
"""),
    Algorithm("merge", "merge the overlapping intervals and list them in order",
              "intervals", ([], [[1, 2]], [[1, 4], [2, 3]]), (), """
out = []
for a, b in sorted(x):
    if out and a <= out[-1][1]:
        out[-1][1] = max(out[-1][1], b)
    else:
        out.append([a, b])
return out
"""),
    Algorithm("spiral", "list the entries of the matrix in a spiral from the top left, clockwise",
              "matrix", ([[1]], [[1, 2], [3, 4]]), (), """
out = []
while x:
    out += x[0]
    x = [list(r) for r in zip(*x[1:])][::-1]
return out
"""),
    Algorithm("transpose", "turn rows of the matrix into columns",
              "matrix", ([[1]], [[1, 2], [3, 4]]), (), """
return [list(r) for r in zip(*x)]
"""),
    Algorithm("factors", "list the prime factors in ascending order, with repeats",
              "count", (1, 2, 12), (), """
out, p = [], 2
while x > 1:
    while x % p == 0:
        out.append(p)
        x //= p
    p += 1
return out
"""),
    Algorithm("pair", "give the indices [i, j], i < j, of the first two items that add up to "
              "{k}, scanning i then j; [] if none",
              "numbers", ([], [5, 5]), (10, 12, 15), """
for i in range(len(x)):
    for j in range(i + 1, len(x)):
        if x[i] + x[j] == {k}:
            return [i, j]
return []
"""),
    Algorithm("inversions", "count the pairs of items that are out of order",
              "numbers", ([], [2, 1], [1, 1]), (), """
return sum(x[i] > x[j] for j in range(len(x)) for i in range(j))
"""),
    Algorithm("polish", "evaluate the expression in reverse Polish notation with + - *",
              "polish", ("7", "2 3 -"), (), """
stack = []
for t in x.split():
    if t in ('+', '-', '*'):
        b, a = stack.pop(), stack.pop()
        stack.append(a + b if t == '+' else a - b if t == '-' else a * b)
    else:
        stack.append(int(t))
return stack[0]
"""),
    Algorithm("palindrome", "give the length of the longest palindrome inside it",
              "letters", ("", "ab", "abba"), (), """
return max((j - i for j in range(len(x) + 1) for i in range(j) if x[i:j] == x[i:j][::-1]), default=0)
"""),
    Algorithm("luhn", "double every second digit from the right, add up all resulting digits, "
              "and say whether {k} divides the sum",
              "digits", ("0", "18"), (5, 10), """
s = 0
for i, c in enumerate(reversed(x)):
    d = int(c) * (1 + i % 2)
    s += d // 10 + d % 10
return s % {k} == 0
"""),
    Algorithm("roman", "write it in Roman numerals", "count", (1, 4, 49), (), """
out = ''
for n, s in zip((100, 90, 50, 40, 10, 9, 5, 4, 1), 'C XC L XL X IX V IV I'.split()):
    while x >= n:
        out += s
        x -= n
return out
"""),
    Algorithm("base", "write it in base {k}", "count", (0, 1, 10), (3, 4, 5, 6, 7), """
out = ''
while x:
    out = str(x % {k}) + out
    x //= {k}
return out or '0'
"""),
    Algorithm("knapsack", "items are [weight, value]: give the best value within weight {k}, each "
              "item at most once",
              "items", ([], [[5, 9]]), (8, 10, 12), """
best = [0] * ({k} + 1)
for w, v in x:
    for i in range({k}, w - 1, -1):
        best[i] = max(best[i], best[i - w] + v)
return best[{k}]
"""),
    Algorithm("anagrams", "count the groups of words that are anagrams of each other, single words included",
              "anagrams", ("", "ab ba"), (), """
return len({''.join(sorted(w)) for w in x.split()})
"""),
    Algorithm("prefix", "give the longest common prefix of the words", "alike", ("ab", "abc abd"), (), """
words = x.split()
n = 0
while all(len(w) > n and w[n] == words[0][n] for w in words):
    n += 1
return words[0][:n]
"""),
)
# fmt: on
