import ApusCore
import ApusSessions

/// The questions to one client whether it answers (IV-G9). The client's next pong answers all of them.
///
/// At most ``countMax`` wait; one more is refused as not asked. Pure; confined to the connection's event loop.
struct ClientProbes {
    static let countMax = 8

    private var waiting: [(number: UInt64, since: MonotonicTime, answer: (ClientProbe) -> Void)] = []
    private var last: UInt64 = 0

    /// Returns the number of the question, or nil if too many wait. Then the answer was given.
    mutating func ask(now: MonotonicTime, answer: @escaping (ClientProbe) -> Void) -> UInt64? {
        guard waiting.count < Self.countMax else {
            answer(.notAsked)
            return nil
        }
        last += 1
        waiting.append((last, now, answer))
        return last
    }

    mutating func answered(now: MonotonicTime) {
        let all = waiting
        waiting = []
        for question in all { question.answer(.answered(now - question.since)) }
    }

    mutating func timedOut(_ number: UInt64) {
        guard let index = waiting.firstIndex(where: { $0.number == number }) else { return }
        waiting.remove(at: index).answer(.silent)
    }
}
