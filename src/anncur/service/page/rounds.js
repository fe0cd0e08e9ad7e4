// What follows from the rounds of a search: what was best after each of them, and when it could have stopped.

export const TARGET = 0.9; // the recall that the page asks about

/** The rounds of an answer, with sums that the figures share; `sign` is -1 where lower scores are better.
 * Rounds are counted from 0. */
export class Rounds {
  constructor(answer, k, sign) {
    this.byScore = (a, b) => sign * (b.score - a.score); // an order of items, best first
    this.all = answer.story?.rounds ?? [];
    this.last = this.all.length - 1;
    this.pairs = runningSums(this.all.map((round) => round.items.length)); // scored after each round
    this.best = bestAfterEach(this.all, k, this.byScore);
    this.recalls = this.all.map((round) => round.estimated_recall);
    this.roundOf = new Map(this.all.flatMap((round, place) => round.items.map((item) => [item.id, place])));
  }

  /** The first round after which the final best k were all there. */
  get settled() {
    const final = new Set(this.best[this.last].map((item) => item.id));
    return this.best.findIndex((best) => shareIn(best, final) === 1);
  }

  /** The first round after which the estimated recall reached the target, or -1. */
  get reached() {
    return this.recalls.findIndex((recall) => recall !== null && recall >= TARGET);
  }

  /** After each round, the share of these ids among its best k. */
  found(ids) {
    return this.best.map((best) => shareIn(best, ids));
  }
}

const shareIn = (best, ids) => (ids.size ? best.filter((item) => ids.has(item.id)).length / ids.size : 1);

function runningSums(numbers) {
  let sum = 0;
  return numbers.map((number) => (sum += number));
}

function bestAfterEach(rounds, k, byScore) {
  let best = [];
  return rounds.map((round) => (best = [...best, ...round.items].sort(byScore).slice(0, k)));
}
