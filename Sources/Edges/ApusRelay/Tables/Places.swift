/// Which places of a table's memory are taken: those that were freed first, then ones that were never used.
///
/// Concurrency model: part of its table.
struct Places {
    /// Places that were ever used, from the first on; memory behind them was never touched.
    private(set) var used = 0
    private var freed: [Int] = []

    /// Takes a place.
    ///
    /// - Returns: the place, and whether it was never used, so that its memory is not initialised.
    mutating func take() -> (index: Int, isNew: Bool) {
        if let old = freed.popLast() { return (old, false) }
        used += 1
        return (used - 1, true)
    }

    mutating func give(back index: Int) { freed.append(index) }
}
