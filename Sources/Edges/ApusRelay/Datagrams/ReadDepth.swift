/// How many datagrams a relay socket is asked for at once: one, or as many as there is room for.
///
/// To find that there is no second datagram costs a quarter of the call that received the first. So a socket is asked
/// for one, as where calls have a packet each, until it had several, or was ready again in the next round; then for
/// all, as long as that goes on. What is left is there in the next round.
package struct ReadDepth: Sendable {
    /// Reads of one datagram until one alone is asked for again.
    package static let readsMax: UInt8 = 8

    package init() {}

    private var readsLeft: UInt8 = 0
    private var lastRound: UInt32 = 0

    /// Whether this read asks for as many as there is room for.
    ///
    /// - Parameter round: the number of this round; each has the next one.
    @inline(__always)
    package mutating func isMany(in round: UInt32) -> Bool {
        if round == lastRound &+ 1 { readsLeft = Self.readsMax }
        lastRound = round
        return readsLeft > 0
    }

    /// What the read gave: datagrams, or an error below 0.
    @inline(__always)
    package mutating func had(_ count: Int) {
        if count > 1 {
            readsLeft = Self.readsMax
        } else if readsLeft > 0 {
            readsLeft &-= 1
        }
    }
}
