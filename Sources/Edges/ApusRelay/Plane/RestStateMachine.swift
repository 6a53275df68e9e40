/// Decides whether a plane under load rests some tens of microseconds before it looks for work again.
///
/// A plane that looks again at once finds a datagram or two each time as long as it is faster than they come: its runs
/// are short, and it walks through the kernel for each. During a rest more gather. But a rest is dear too, a timer and
/// two changes of threads (10 to 20 µs in a virtual machine), and where runs do not grow by it nothing is won: one
/// datagram for each of many destinations, or runs that came joined already. Which weighs more depends on the machine
/// and the traffic, so it is measured: in a trial of 30 ms slices with and without rests alternate, and the plane rests
/// afterwards if its thread took at least 8 % less CPU time for a packet with them. After half a second it tries again.
///
/// It does not begin a trial below 30,000 received messages a second, nor where rounds bring one message each: there a
/// sender waits for its answer. A rest thus delays packets of a busy relay alone, and none where few are under way. Nor
/// does the plane rest after a round that left something behind.
///
/// Concurrency model: a value of the plane's thread.
package struct RestStateMachine: Sendable {
    /// How long a slice is, in nanoseconds, and the slices of a trial: an even number.
    package static let slice: UInt64 = 5_000_000
    package static let trialSlices = 6
    /// How long what a trial found holds, in nanoseconds.
    package static let hold: UInt64 = 500_000_000
    /// Messages per second from which a trial begins, and below which the plane stops resting.
    package static let beginRate: UInt64 = 30_000
    package static let endRate: UInt64 = 20_000
    /// The most of the CPU time without rests that packets may cost with them, in percent.
    package static let costPercentMax: UInt64 = 92

    private struct Cost {
        var cpu: UInt64 = 0
        var packets: UInt64 = 0
    }

    private enum State {
        /// Looks again at once; tries rests at this time at the soonest.
        case awake(until: UInt64)
        /// In the slice of this number: those with an odd one rest.
        case trying(slice: Int, resting: Cost, awake: Cost)
        case resting(until: UInt64)
    }

    package init() {}

    private var state = State.awake(until: 0)
    /// When this slice began, and what the thread had taken then.
    private var sliceStart: UInt64 = 0
    private var sliceCPU: UInt64 = 0
    private var messages: UInt64 = 0
    private var packets: UInt64 = 0
    private var rounds: UInt64 = 0

    /// Whether the plane rests after a round that brought something.
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
    ///   - messages: what the kernel was asked for and gave, each a datagram or several joined ones.
    ///   - packets: what was relayed of it.
    ///   - now: nanoseconds of the monotonic clock.
    /// - Returns: whether the slice is over, so that ``sliceEnded(at:cpu:)`` comes next.
    @inline(__always)
    package mutating func roundEnded(messages: Int, packets: UInt64, at now: UInt64) -> Bool {
        self.messages &+= UInt64(messages)
        self.packets &+= packets
        rounds &+= 1
        return now &- sliceStart >= Self.slice
    }

    /// A slice is over.
    ///
    /// - Parameter cpu: the CPU time that the thread has taken altogether, in nanoseconds.
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
            // A sender that waits for answers is slower where these wait.
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
        // Of one packet each, multiplied by the packets of both.
        let isCheaper =
            resting.packets > 0
            && resting.cpu &* awake.packets &* 100 <= awake.cpu &* resting.packets &* costPercentMax
        return isCheaper ? .resting(until: now &+ hold) : .awake(until: now &+ hold)
    }
}
