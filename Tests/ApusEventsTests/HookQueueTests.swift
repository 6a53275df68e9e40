import ApusCore
import ApusEvents
import SwiftProtobuf
import Testing

@Suite("The queue of a hook (IV-D10)")
struct HookQueueTests {
    /// A queue whose nodes have 12 s for a batch. A class, so that expectations can change it.
    private final class TestedQueue {
        private(set) var state: HookQueue

        init(_ state: HookQueue = HookQueue()) { self.state = state }

        /// - Parameter share: of an account; 0: of no account.
        func written(
            at now: Int64, countMax: Int = 100, byteCountMax: Int = 1 << 20, share: UInt32 = 0, byteCount: UInt32 = 1,
            alarm: Bool = true
        ) -> Bool {
            let event = HookWritten.with {
                ($0.customer, $0.hook) = ("acme", "alarms")
                ($0.share, $0.byteCount, $0.alarm) = (share, byteCount, alarm)
            }
            let bounds = HookBounds(countMax: countMax, byteCountMax: byteCountMax)
            return state.written(event, at: now, within: bounds)
        }

        func begins(at now: Int64) -> Bool { state.begins(at: now, for: 12_000) }
        func ended(_ report: HookDelivered, at now: Int64) { state.ended(report, at: now) }
        func refuses(_ share: UInt32, max count: Int = 1000) -> Bool {
            let bounds = HookBounds(countMax: 100, byteCountMax: 1 << 20, failedMax: count)
            return state.refuses(.with { $0.share = share }, within: bounds)
        }
        func cleared(_ message: HookCleared) { state.cleared(message) }
        func found(at now: Int64) { state.found("acme", "alarms", at: now) }
    }

    @Test("An event is delivered at once, and those that come meanwhile after it")
    func order() {
        let queue = TestedQueue()
        #expect(queue.written(at: 1000))
        #expect(queue.begins(at: 1000))
        #expect(queue.state.dueMs == 13_000, "the reminder comes when the node's time is over")
        #expect(queue.written(at: 1001))
        #expect(!queue.begins(at: 1001), "one batch at a time")
        queue.ended(.with { $0.delivered = 1 }, at: 1010)
        #expect(queue.state.waiting == 1)
        #expect(queue.begins(at: 1010))
        queue.ended(.with { $0.delivered = 1 }, at: 1020)
        #expect(queue.state.waiting == 0 && queue.state.dueMs == nil)
    }

    @Test("A failed attempt is repeated, after twice the time before, at most a minute")
    func retries() {
        let queue = TestedQueue()
        var (now, waits) = (Int64(1000), [Int64]())
        _ = queue.written(at: now)
        for _ in 0..<12 {
            #expect(queue.begins(at: now))
            queue.ended(.with { $0.failure = "21005" }, at: now)
            let due = queue.state.dueMs ?? 0
            #expect(!queue.begins(at: due - 1))
            waits.append(due - now)
            now = due
        }
        #expect(waits.prefix(4) == [500, 1000, 2000, 4000] && waits.last == 60_000)
        #expect(queue.state.failures == 12 && queue.state.failure == "21005" && queue.state.waiting == 1)
        #expect(queue.begins(at: now))
        queue.ended(.with { $0.delivered = 1 }, at: now)
        #expect(queue.state.failures == 0 && queue.state.failure.isEmpty)
    }

    /// An endpoint that refuses some of the events of a queue, all of which wait at first. Events are numbers.
    private func deliver(
        _ count: Int, refusing isRefused: (Int) -> Bool
    ) -> (taken: [Int], aside: [Int], requests: Int, waitedMs: Int64, queue: TestedQueue) {
        let (queue, start) = (TestedQueue(), Int64(1000))
        for _ in 0..<count { _ = queue.written(at: start) }
        var (rest, taken, aside, requests, now) = (Array(0..<count), [Int](), [Int](), 0, start)
        while let due = queue.state.dueMs, requests < 10_000 {
            now = max(now, due)
            guard queue.begins(at: now) else { break }
            requests += 1
            let size = queue.state.batch == 0 ? 32 : Int(queue.state.batch)
            let batch = Array(rest.prefix(size))
            guard batch.contains(where: isRefused) else {
                taken += batch
                rest.removeFirst(batch.count)
                queue.ended(.with { ($0.delivered, $0.more) = (UInt64(batch.count), batch.count == size) }, at: now)
                continue
            }
            if batch.count == 1 {
                #expect(queue.refuses(1))
                aside += batch
                rest.removeFirst()
            }
            queue.ended(.with { ($0.refused, $0.failure) = (UInt32(batch.count), "400") }, at: now)
        }
        return (taken, aside, requests, now - start, queue)
    }

    @Test(
        "An event that the endpoint refuses is put aside, and the others go on in order at once",
        arguments: [[0], [31], [32], [99], [5, 6], [3, 40, 41, 90], Array(0..<8), []])
    func refused(poison: [Int]) {
        let result = deliver(100) { poison.contains($0) }
        #expect(result.taken == (0..<100).filter { !poison.contains($0) })
        #expect(result.aside == poison)
        #expect(result.waitedMs == 0, "nothing waits for an event that is refused")
        // Halving finds one of 32 in six requests, and requests of twice the size each follow.
        #expect(result.requests <= 4 + 12 * poison.count, "\(result.requests)")
        let state = result.queue.state
        #expect(state.waiting == 0 && state.failed == UInt64(poison.count) && state.dueMs == nil)
        #expect(state.failure.isEmpty && state.batch == 0 && state.suspects == 0)
    }

    @Test("An endpoint that refuses every event is asked more and more rarely, and takes all again when it is mended")
    func broken() {
        let result = deliver(40) { _ in true }
        #expect(result.aside.count == 40 && result.taken.isEmpty)
        // Eight at once, and then after 0.5, 1, 2 … 60 seconds.
        #expect(result.waitedMs > 20 * 60_000, "\(result.waitedMs)")
        let mended = deliver(100) { $0 < 10 }
        #expect(mended.taken == Array(10..<100) && mended.waitedMs == 1500)
        #expect(mended.queue.state.refusals == 0 && mended.queue.state.batch == 0)
    }

    @Test("Refused events have a bound, and an account's do not keep those of others out")
    func refusedBound() {
        let queue = TestedQueue()
        let count = (0..<100).count { _ in queue.refuses(1, max: 16) }
        #expect(count == 8, "one account has half of what is free")
        #expect(queue.refuses(2, max: 16) && queue.state.dropped == 92)
        while queue.state.failed < 16 { _ = queue.refuses(UInt32(queue.state.failed), max: 16) }
        #expect(!queue.refuses(0, max: 16) && queue.state.failed == 16)
        queue.cleared(.with { $0.shares = [.with { ($0.number, $0.events) = (1, 8) }] })
        #expect(queue.state.failed == 8 && queue.refuses(1, max: 16))
        queue.cleared(.with { $0.all = true })
        #expect(queue.state.failed == 0 && queue.state.failedShares.isEmpty)
    }

    @Test("A new event does not shorten the wait after a failure")
    func patience() {
        let queue = TestedQueue()
        _ = queue.written(at: 0)
        _ = queue.begins(at: 0)
        for _ in 0..<3 { queue.ended(.with { $0.failure = "21005" }, at: 0) }
        _ = queue.written(at: 10)
        #expect(queue.state.dueMs == 2000)
    }

    @Test("A node that has died is replaced when its time is over; a clock that went back stops nothing")
    func deaths() {
        let queue = TestedQueue()
        _ = queue.written(at: 100_000)
        _ = queue.begins(at: 100_000)
        #expect(!queue.begins(at: 111_999))
        #expect(queue.begins(at: 112_000))
        #expect(queue.begins(at: 50_000), "the end lies further ahead than any attempt may take")
    }

    @Test("A queue that has lost its state begins when events are found, and one that works goes on as it was")
    func forgotten() {
        let queue = TestedQueue()
        queue.found(at: 1000)
        #expect(queue.state.waiting == 1 && queue.begins(at: 1000))
        queue.ended(.with { $0.failure = "21005" }, at: 1000)
        queue.found(at: 1001)
        #expect(queue.state.dueMs == 1500, "the wait after a failure stays")
        #expect(queue.begins(at: -100_000), "a time far ahead is one of a wrong clock")
    }

    @Test("More events than the bound are refused, counted, and harm nothing")
    func bound() {
        let queue = TestedQueue()
        for _ in 0..<3 { #expect(queue.written(at: 0, countMax: 3)) }
        #expect(!queue.written(at: 0, countMax: 3))
        #expect(queue.state.waiting == 3 && queue.state.dropped == 1)
        _ = queue.begins(at: 0)
        queue.ended(.with { ($0.delivered, $0.expired, $0.more) = (1, 1, true) }, at: 0)
        #expect(queue.state.waiting == 1 && queue.state.dropped == 2)
        #expect(queue.written(at: 0, countMax: 3))
        // Reports that count more than there is: a record was written, and its message was lost.
        queue.ended(.with { $0.delivered = 100 }, at: 0)
        #expect(queue.state.waiting == 0)
    }

    @Test("One account has an eighth of the places and of the bytes, and has them again when they were delivered")
    func shares() {
        let queue = TestedQueue()
        func written(_ share: UInt32, byteCount: UInt32 = 1) -> Bool {
            queue.written(at: 1000, countMax: 80, byteCountMax: 8000, share: share, byteCount: byteCount)
        }
        // As much as is free: half, as long as there is nobody else.
        for _ in 0..<40 { #expect(written(1)) }
        #expect(!written(1) && written(2))
        #expect(queue.state.waiting == 41 && queue.state.dropped == 1)
        // Never less than an eighth.
        for share in UInt32(3)...5 { for _ in 0..<10 { _ = written(share) } }
        for _ in 0..<9 { _ = written(2) }
        #expect(queue.state.waiting == 80 && queue.state.shares.allSatisfy { $0.number == 1 || $0.events >= 9 })
        #expect(queue.begins(at: 1000))
        let delivered = HookShare.with { ($0.number, $0.events, $0.byteCount) = (1, 5, 5) }
        queue.ended(
            .with { ($0.delivered, $0.byteCount, $0.shares, $0.more) = (5, 5, [delivered], true) }, at: 1000)
        #expect(queue.state.byteCount == 75)
        #expect(!written(1) && written(6))
        // What was not reported is forgotten when nothing waits.
        #expect(queue.begins(at: 1000))
        queue.ended(.with { $0.delivered = 1 }, at: 1000)
        #expect(queue.state.waiting == 0 && queue.state.byteCount == 0 && queue.state.shares.isEmpty)
        #expect(written(1) && written(3))
        let large = TestedQueue()
        for byteCount in [3000, 1000] as [UInt32] {
            #expect(large.written(at: 0, byteCountMax: 8000, share: 1, byteCount: byteCount))
        }
        #expect(!large.written(at: 0, byteCountMax: 8000, share: 1, byteCount: 1))
        #expect(large.written(at: 0, byteCountMax: 8000, share: 2, byteCount: 1))
        let shares = Set((0..<10_000).map { HookQueue.share(of: "account-\($0)", isAlarm: false) })
        #expect(shares == Set(1...UInt32(HookQueue.sharesMax)))
        #expect(!shares.contains(HookQueue.share(of: "account-1", isAlarm: true)))
    }

    @Test("The last eighth of the places and of the bytes is for alarms")
    func alarms() {
        let queue = TestedQueue()
        for _ in 0..<70 { #expect(queue.written(at: 0, countMax: 80, alarm: false)) }
        #expect(!queue.written(at: 0, countMax: 80, alarm: false))
        for _ in 0..<10 { #expect(queue.written(at: 0, countMax: 80)) }
        #expect(!queue.written(at: 0, countMax: 80))
        let large = TestedQueue()
        #expect(large.written(at: 0, byteCountMax: 800, byteCount: 700, alarm: false))
        #expect(!large.written(at: 0, byteCountMax: 800, alarm: false))
        #expect(large.written(at: 0, byteCountMax: 800, byteCount: 100))
        #expect(!large.written(at: 0, byteCountMax: 800))
    }

    @Test("Numbers that no node counts to are refused, and those of a former owner do no harm (D13)")
    func numbers() {
        for report in [
            HookDelivered.with { $0.delivered = .max }, .with { $0.expired = .max }, .with { $0.byteCount = .max },
        ] {
            #expect(!report.isWithinBounds)
        }
        #expect(HookDelivered.with { ($0.delivered, $0.expired) = (32, 32) }.isWithinBounds)
        #expect(!HookWritten.with { $0.share = .max }.isWithinBounds)
        let share = HookShare.with { ($0.number, $0.events, $0.byteCount) = (1, .max, .max) }
        let queue = TestedQueue(
            HookQueue.with {
                ($0.waiting, $0.dropped, $0.byteCount, $0.failures) = (.max, .max, .max, .max)
                $0.shares = [share]
            })
        #expect(!queue.written(at: 1000, share: 1) && queue.state.dropped == .max)
        let failure = String(repeating: "x", count: 1000)
        queue.ended(.with { ($0.delivered, $0.expired, $0.failure) = (.max, .max, failure) }, at: 1000)
        #expect(queue.state.waiting == 0 && queue.state.dropped == .max)
        #expect(queue.state.failures == .max && queue.state.failure.count < 1000)
        queue.ended(.with { ($0.expired, $0.byteCount, $0.shares) = (1, 1, [share]) }, at: 1000)
        #expect(queue.state.dropped == .max && queue.written(at: 1000, share: 1))
    }
}

@Suite("What a hook may be, and who has which share (IV-D12)")
struct HookBoundsTests {
    @Test("Hosts that integrators may name")
    func hosts() {
        var configuration = EventConfiguration()
        #expect(!configuration.allows(host: "example.org"))
        configuration.hosts = ["hooks.example.org", "*.acme.example"]
        for host in ["hooks.example.org", "HOOKS.example.org", "a.acme.example", "b.a.acme.example"] {
            #expect(configuration.allows(host: host))
        }
        for host in ["example.org", "acme.example", "evilacme.example", "hooks.example.org.evil", "127.0.0.1", ""] {
            #expect(!configuration.allows(host: host))
        }
    }

    @Test("A URL is a name and a plain path; others are 21031")
    func urls() throws {
        #expect(try EventService.parts(of: "echo") == ("echo", ""))
        #expect(try EventService.parts(of: "orders/42/lines") == ("orders", "42/lines"))
        for url in ["", "/x", "a b", "orders/4?2", "orders/é", "http://x", "o/" + String(repeating: "x", count: 201)] {
            #expect(throws: ApusError.self) { try EventService.parts(of: url) }
        }
    }

    @Test("An account has an eighth of what waits for servers, a customer half")
    func shares() {
        var slots = ServerSlots(countMax: 16)
        func take(_ customer: String, _ account: String) -> Bool { slots.take(customer: customer, account: account) }
        #expect(take("a", "1") && take("a", "1") && !take("a", "1"))
        for account in 2...4 {
            for _ in 0..<2 { #expect(take("a", "\(account)")) }
        }
        #expect(!take("a", "5"), "a customer has half")
        #expect(take("b", "5"))
        slots.giveBack(customer: "a", account: "1")
        #expect(take("a", "1") && !take("a", "1"))
    }
}
