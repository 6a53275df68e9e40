/// The votes against a member that is silent, and what they decide (D4).
///
/// The member may answer with the promises of a majority, of which some may be promises of members that died since. The
/// votes decide only if they have a node in common with the promises of those that are alive
/// (``PromiseStateMachine``).
///
/// Pure value.
package struct VoteCount: Sendable, Equatable {
    package enum Share: Sendable {
        case few
        /// The member is dead if its lease in the ownership store has run out.
        case half
        case majority
    }

    /// The members that may vote: those that are not proven dead, without the silent one.
    package var voterCount: Int
    /// The members that died, and whose promises may not have ended. Of the watchers, if those vote.
    package var lostCount: Int
    /// The number of the member's watchers, the dead ones included; nil if all members watch it.
    package var watcherCount: Int?
    package var countedCount: Int
    /// Votes that count only if the member's lease has run out (``PromiseStateMachine/Vote/uncounted``).
    package var uncountedCount: Int

    package init(
        voterCount: Int, lostCount: Int = 0, watcherCount: Int? = nil, countedCount: Int, uncountedCount: Int = 0
    ) {
        self.voterCount = voterCount
        self.lostCount = lostCount
        self.watcherCount = watcherCount
        self.countedCount = countedCount
        self.uncountedCount = uncountedCount
    }

    package var share: Share { watcherCount.map(shareOfWatchers) ?? shareOfAll }

    /// Of n members, a node may answer with the promises of n / 2 others. If k of them are lost, n / 2 - k others that
    /// are alive suffice. A majority of n - 1 has one of these in common, and of n the half has as well, whatever k is.
    private var shareOfAll: Share {
        let memberCount = voterCount + 1
        let neededCount = memberCount + max(0, lostCount - 1)
        if countedCount * 2 > neededCount { return .majority }
        let isHalf = countedCount * 2 == memberCount + lostCount
        return isHalf || uncountedCount > 0 && (countedCount + uncountedCount) * 2 > neededCount ? .half : .few
    }

    /// Of n watchers, a member may answer with the promises of n / 2 + 1. If k watchers are lost, n / 2 + 1 - k that
    /// are alive suffice, and one of these must be among the voters.
    private func shareOfWatchers(_ count: Int) -> Share {
        let memberCount = voterCount + 1
        let disjointMax = voterCount - (count / 2 + 1 - lostCount)
        if countedCount * 2 > memberCount, countedCount > disjointMax { return .majority }
        let allCount = countedCount + uncountedCount
        let isHalf = countedCount * 2 >= memberCount - 1 || allCount * 2 > memberCount
        return isHalf && allCount > disjointMax ? .half : .few
    }
}
