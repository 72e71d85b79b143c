"""Near-duplicates: prompts that ask nearly the same, found exactly.

By a prefix-filtered similarity join (Chaudhuri et al. 2006; Xiao et al., PPJoin, 2008) over the word pairs of
normalised prompts: two prompts that alike must share one of their few rarest pairs, so only prompts with a
rare pair in common are compared. What most prompts of a family say, such as its rules, does not count, nor
what most of so many alike say that they would fill half of a split, such as the rules of one of its sources.
Leaves out paraphrases, and where they go (splits).
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from math import ceil

from agentkit.verifiers import normalize

LARGE = 20  # tasks of a family, of which some belong into every split
SIMILAR = 0.85  # Jaccard similarity of word pairs from which two prompts are near-duplicates
MANY = 0.075  # of a family's prompts: as near-duplicates they would fill half of the smallest split


def near_duplicates(prompts: Sequence[str], families: Sequence[str] = ()) -> Iterator[tuple[int, int]]:
    """Pairs of positions of prompts whose word pairs have a Jaccard similarity of at least ``SIMILAR``,
    as many as connect all that such pairs connect.

    Pairs of words in more than half of a family's prompts, where it has ``LARGE`` or more, are left out; a
    prompt that holds nothing else keeps them. Where more than the share ``MANY`` of a family's prompts are
    near-duplicates of each other all the same, so are those in more than half of these.
    """
    families = families or [""] * len(prompts)
    pairs = _own_pairs([_word_pairs(prompt) for prompt in prompts], families)
    roots, sizes = joined(len(prompts), _alike(pairs)), Counter(families)
    held = Counter(roots)
    groups = [root if held[root] > MANY * sizes[families[i]] else i for i, root in enumerate(roots)]
    return _alike(_own_pairs(pairs, groups))


def _own_pairs(pairs: Sequence[frozenset[str]], groups: Sequence[Hashable]) -> list[frozenset[str]]:
    """Without those in more than half of a group, where it has ``LARGE`` prompts or more."""
    sizes, counts = Counter(groups), defaultdict(Counter)
    for group, words in zip(groups, pairs, strict=True):
        counts[group].update(words)
    common = {
        name: {pair for pair, count in own.items() if 2 * count > sizes[name] >= LARGE}
        for name, own in counts.items()
    }
    return [words - common[group] or words for group, words in zip(groups, pairs, strict=True)]


def _alike(pairs: Sequence[frozenset[str]]) -> Iterator[tuple[int, int]]:
    from scipy.cluster.hierarchy import DisjointSet

    frequency = Counter(pair for words in pairs for pair in words)
    together = DisjointSet(range(len(pairs)))
    index = defaultdict(lambda: defaultdict(list))  # by pair, and by one that those listed are connected to
    for i, words in enumerate(pairs):
        rare_first = sorted(words, key=lambda pair: (frequency[pair], pair))
        rarest, compared = rare_first[: len(words) - ceil(SIMILAR * len(words)) + 1], set()
        for one, others in (held for pair in rarest for held in index[pair].items()):
            for j in others if not together.connected(one, i) else ():
                if j not in compared and _similar(words, pairs[j]):
                    together.merge(j, i)
                    yield j, i
                    break  # the rest are connected to it
                compared.add(j)
        for pair in rarest:
            index[pair][together[i]].append(i)


def _similar(one: frozenset[str], other: frozenset[str]) -> bool:
    small, large = sorted((len(one), len(other)))
    needed = SIMILAR / (1 + SIMILAR) * (small + large)  # pairs in common, for that Jaccard similarity
    return small >= SIMILAR * large and len(one & other) >= needed


def _word_pairs(prompt: str) -> frozenset[str]:
    words = ["", *normalize(prompt).split(), ""]
    return frozenset(f"{a} {b}" for a, b in zip(words, words[1:], strict=False))


def joined(count: int, links: Iterable[tuple[int, int]]) -> list[int]:
    """For each position one that stands for all those it is connected to."""
    from scipy.cluster.hierarchy import DisjointSet

    joined = DisjointSet(range(count))
    for one, other in links:
        joined.merge(one, other)
    return [joined[i] for i in range(count)]
