/// Decides whether a plane under load pauses for some tens of microseconds between rounds.
///
/// A plane that polls again at once finds one or two datagrams each time, as long as it is faster than they arrive. Its
/// runs are then short, and each costs a pass through the kernel. During a pause more datagrams gather. But a pause has
/// a cost too, a timer and two thread switches (10 to 20 µs in a virtual machine), and gains nothing if runs do not
/// grow: with one datagram for each of many destinations, or with runs that arrived joined. The balance depends on the
/// machine and the traffic, so it is measured. In a trial of 30 ms, slices with and without pauses alternate. The plane
/// then pauses if its thread used at least 8 % less CPU time per packet with them. After half a second it tries again.
///
/// It starts no trial below 30,000 received messages per second, nor if rounds bring one message each: there a sender
/// waits for its answer. Pauses thus delay only packets of a busy relay. The plane does not pause after a round that
/// left something to do.
///
/// Concurrency model: a value of the plane's thread.
package struct RestStateMachine: Sendable {
    /// The length of a slice in nanoseconds, and the even number of slices in a trial.
    package static let slice: UInt64 = 5_000_000
    package static let trialSlices = 6
    /// How long the result of a trial is used, in nanoseconds.
    package static let hold: UInt64 = 500_000_000
    /// The messages per second from which a trial starts, and below which the plane stops pausing.
    package static let beginRate: UInt64 = 30_000
    package static let endRate: UInt64 = 20_000
    /// The CPU time per packet with pauses, relative to that without, up to which the plane pauses, in percent.
    package static let costPercentMax: UInt64 = 92

    private struct Cost {
        var cpu: UInt64 = 0
        var packets: UInt64 = 0
    }

    private enum State {
        /// Does not pause. The next trial may start at this time.
        case awake(until: UInt64)
        /// In the slice of this number. The plane pauses in odd ones.
        case trying(slice: Int, resting: Cost, awake: Cost)
        case resting(until: UInt64)
    }

    package init() {}

    private var state = State.awake(until: 0)
    /// The start of this slice, and the thread's CPU time then.
    private var sliceStart: UInt64 = 0
    private var sliceCPU: UInt64 = 0
    private var messages: UInt64 = 0
    private var packets: UInt64 = 0
    private var rounds: UInt64 = 0

    /// True if the plane pauses after a round that received something.
    package var isResting: Bool {
        switch state {
        case .awake: false
        case .trying(let slice, _, _): slice % 2 == 1
        case .resting: true
        }
    }

    /// A round ended that received something.
    ///
    /// - Parameters:
    ///   - messages: received messages, each a datagram or several joined ones.
    ///   - packets: packets relayed from these.
    ///   - now: nanoseconds of the monotonic clock.
    /// - Returns: true if the slice has ended, so that ``sliceEnded(at:cpu:)`` must follow.
    @inline(__always)
    package mutating func roundEnded(messages: Int, packets: UInt64, at now: UInt64) -> Bool {
        self.messages &+= UInt64(messages)
        self.packets &+= packets
        rounds &+= 1
        return now &- sliceStart >= Self.slice
    }

    /// A slice ended.
    ///
    /// - Parameter cpu: the total CPU time of the thread, in nanoseconds.
    package mutating func sliceEnded(at now: UInt64, cpu: UInt64) {
        let rate = messages &* 1_000_000_000 / max(1, now &- sliceStart)
        let cost = Cost(cpu: cpu &- sliceCPU, packets: packets)
        let isBusy = rate >= Self.beginRate && messages >= 2 &* rounds
        (sliceStart, sliceCPU) = (now, cpu)
        (messages, packets, rounds) = (0, 0, 0)
        switch state {
        case .awake(let until):
            if isBusy, now >= until { state = .trying(slice: 0, resting: Cost(), awake: Cost()) }
        case .resting(let until):
            if rate < Self.endRate {
                state = .awake(until: now)
            } else if now >= until {
                state = .trying(slice: 0, resting: Cost(), awake: Cost())
            }
        case .trying(let slice, let resting, let awake):
            // A sender that waits for answers is slowed down by pauses.
            guard rate >= Self.endRate else {
                state = .awake(until: now &+ Self.hold)
                return
            }
            state = Self.next(slice, resting, awake, cost, at: now)
        }
    }

    private static func next(_ slice: Int, _ resting: Cost, _ awake: Cost, _ cost: Cost, at now: UInt64) -> State {
        var (resting, awake) = (resting, awake)
        if slice % 2 == 1 {
            resting = Cost(cpu: resting.cpu &+ cost.cpu, packets: resting.packets &+ cost.packets)
        } else {
            awake = Cost(cpu: awake.cpu &+ cost.cpu, packets: awake.packets &+ cost.packets)
        }
        guard slice &+ 1 == trialSlices else { return .trying(slice: slice &+ 1, resting: resting, awake: awake) }
        // The cost per packet of each, multiplied by the packets of both.
        let isCheaper =
            resting.packets > 0
            && resting.cpu &* awake.packets &* 100 <= awake.cpu &* resting.packets &* costPercentMax
        return isCheaper ? .resting(until: now &+ hold) : .awake(until: now &+ hold)
    }
}
