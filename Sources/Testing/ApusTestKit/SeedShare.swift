import Foundation

/// The seeds of a simulation or a property test that one run of the tests plays.
///
/// A run plays every ninth seed. `APUS_TEST_TURN` says from which it begins, so nine turns in a row play all of them:
/// CI counts the turn up with each commit. `APUS_TEST_SEEDS=all` plays all in one run, as `scripts/test --long` does.
package enum SeedShare {
    /// The runs that together play all seeds.
    ///
    /// It is odd: simulations choose their faults by the last bits of a seed, and each run has all of them.
    package static let turnCount = 9

    private static let environment = ProcessInfo.processInfo.environment

    /// The seeds of this run.
    package static func seeds(of all: Range<UInt64>) -> [UInt64] {
        if environment["APUS_TEST_SEEDS"] == "all" { return Array(all) }
        let turn = environment["APUS_TEST_TURN"].flatMap(Int.init) ?? 0
        return share(of: all, turn: turn)
    }

    /// The seeds of this run, in chunks that can run side by side.
    package static func chunks(of all: Range<UInt64>, size: Int) -> [[UInt64]] {
        let seeds = seeds(of: all)
        return stride(from: 0, to: seeds.count, by: size).map {
            Array(seeds[$0..<min($0 + size, seeds.count)])
        }
    }

    /// Every ninth seed, from that of a turn.
    package static func share(of all: Range<UInt64>, turn: Int) -> [UInt64] {
        let first = all.lowerBound + UInt64(turn.magnitude) % UInt64(turnCount)
        return Array(stride(from: first, to: all.upperBound, by: turnCount))
    }
}
