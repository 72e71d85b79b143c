"""A booking desk: two tools that return JSON, a verifier of the end's state, one reward."""

from agentkit import Family, Task

CITIES = ("Aarhus", "Bergen", "Cádiz", "Dijon", "Évora")
ROOMS = {"attic": 60, "garden": 85, "loft": 90, "studio": 70, "suite": 140, "tower": 110}  # euros
NUMBERS = {city: {room: 100 * i + j for j, room in enumerate(ROOMS)} for i, city in enumerate(CITIES, 1)}


class Desk:
    system_prompt = 'List the free rooms, book what is asked for, and end with a line "Answer: ...".'

    def reset(self, **row) -> None:
        self._booked = []

    def rooms(self, city: str) -> dict:
        """List the free rooms.

        Args:
            city: Where.
        """
        return {room: {"number": NUMBERS[city][room], "price": price} for room, price in ROOMS.items()}

    def book(self, number: int, nights: int) -> dict:
        """Book a room.

        Args:
            number: The room's number.
            nights: How many.
        """
        self._booked.append({"number": number, "nights": nights})
        return {"booked": number}

    def state(self) -> dict:
        return {"booked": self._booked}


def draft(corpus, rng) -> Task:
    city, names, nights = rng.choice(CITIES), rng.sample(sorted(ROOMS), rng.randint(1, 2)), rng.randint(1, 6)
    looks = [{"tool": "rooms", "arguments": {"city": city}, "expect": {"path": f"{n}.number"}} for n in names]
    given = [{"number": f"{{{i}}}", "nights": nights} for i in range(len(names))]  # {0}: the first one found
    meta = {"plan": looks + [{"tool": "book", "arguments": each} for each in given]}
    gold = ", ".join(f"{number} x {nights}" for number in sorted(NUMBERS[city][name] for name in names))
    prompt = f"Book the {' and the '.join(names)} in {city} for {nights} nights."
    return Task("", prompt, gold, "booked", tools=("rooms", "book"), meta=meta)


def booked(answer, gold, *, state) -> float:
    made = sorted((b["number"], b["nights"]) for b in state["booked"])
    return float(", ".join(f"{number} x {nights}" for number, nights in made) == gold)


def looked_first(task, trajectory) -> float:
    return float([result.name for turn in trajectory.turns for result in turn.results][:1] == ["rooms"])


families = {"booking": Family(draft, environment=Desk)}
verifiers = {"booked": booked}
rewards = {"looked_first": (looked_first, 0.2)}
