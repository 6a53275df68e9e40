/// The used places of a table's memory. Freed places are reused first, then unused ones.
///
/// Concurrency model: part of its table.
struct Places {
    /// The number of places ever used, from the first on. Memory behind them was never accessed.
    private(set) var used = 0
    private var freed: [Int] = []

    /// Takes a place.
    ///
    /// - Returns: the place, and whether it was never used, so that its memory is uninitialised.
    mutating func take() -> (index: Int, isNew: Bool) {
        if let old = freed.popLast() { return (old, false) }
        used += 1
        return (used - 1, true)
    }

    mutating func give(back index: Int) { freed.append(index) }
}
