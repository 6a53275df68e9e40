/** Random numbers below a bound, the same for a seed. */
export function seeded(seed) {
    let state = seed * 2_654_435_761 >>> 0;
    return bound => {
        state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
        return Math.floor(state / 2 ** 32 * bound);
    };
}
