import NIOCore

/// A promise of one node to another, in a heartbeat: the sender does not take the receiver for dead for some time (D4).
///
/// The times are on the clock of the node that made them. No clock is compared with another one.
public struct HeartbeatPromise: Sendable, Hashable {
    /// The time at which this promise was sent, on the sender's monotonic clock, in nanoseconds.
    public var sentNanoseconds: UInt64
    /// The newest ``sentNanoseconds`` of the receiver that the sender has heard; 0 if it has heard none.
    public var echoNanoseconds: UInt64
    /// The time from the arrival of the echoed datagram to the sending of this one, in microseconds.
    public var heldMicroseconds: UInt32
    /// The length of the promise, counted from the time at which the echoed datagram was sent, in milliseconds; 0 if
    /// the sender promises nothing.
    public var promisedMilliseconds: UInt16
    /// The number of the sender's last vote against the receiver, if it is recent; otherwise 0.
    public var vote: UInt32
    /// The sender's map has more members than a full mesh: it sends promises to its watchers alone, and counts theirs.
    public var isAmongWatchers: Bool

    public init(
        sentNanoseconds: UInt64, echoNanoseconds: UInt64 = 0, heldMicroseconds: UInt32 = 0,
        promisedMilliseconds: UInt16 = 0, vote: UInt32 = 0, isAmongWatchers: Bool = false
    ) {
        self.sentNanoseconds = sentNanoseconds
        self.echoNanoseconds = echoNanoseconds
        self.heldMicroseconds = heldMicroseconds
        self.promisedMilliseconds = promisedMilliseconds
        self.vote = vote
        self.isAmongWatchers = isAmongWatchers
    }

    func encode(into buffer: inout ByteBuffer) {
        buffer.writeMultipleIntegers(sentNanoseconds, echoNanoseconds, heldMicroseconds, promisedMilliseconds, vote)
    }

    init?(decoding buffer: inout ByteBuffer) {
        guard
            let (sent, echo, held, promised, vote) = buffer.readMultipleIntegers(
                as: (UInt64, UInt64, UInt32, UInt16, UInt32).self)
        else { return nil }
        self.init(
            sentNanoseconds: sent, echoNanoseconds: echo, heldMicroseconds: held, promisedMilliseconds: promised,
            vote: vote)
    }
}
