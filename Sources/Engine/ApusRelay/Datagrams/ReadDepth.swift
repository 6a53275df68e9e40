/// The number of datagrams requested in one read of a relay socket: one, or as many as there is room for.
///
/// To find that there is no second datagram costs a quarter of the call that received the first. A socket is therefore
/// read one datagram at a time, as for calls with one packet each, until a read gave several, or the socket was ready
/// again in the next round. Then all are requested, as long as that continues. Remaining datagrams are read in the next
/// round.
package struct ReadDepth: Sendable {
    /// Reads of a single datagram after which one is requested again.
    package static let readsMax: UInt8 = 8

    package init() {}

    private var readsLeft: UInt8 = 0
    private var lastRound: UInt32 = 0

    /// True if this read requests as many as there is room for.
    ///
    /// - Parameter round: the number of this round; consecutive.
    @inline(__always)
    package mutating func isMany(in round: UInt32) -> Bool {
        if round == lastRound &+ 1 { readsLeft = Self.readsMax }
        lastRound = round
        return readsLeft > 0
    }

    /// The result of the read: the number of datagrams, or an error below 0.
    @inline(__always)
    package mutating func had(_ count: Int) {
        if count > 1 {
            readsLeft = Self.readsMax
        } else if readsLeft > 0 {
            readsLeft &-= 1
        }
    }
}
