import ApusCommands
import ApusCore
import Foundation
import SwiftProtobuf
import Testing

@Suite("The commands of a device (IV-D5, IV-D11, IV-D15)")
struct CommandQueueTests {
    private typealias Effects = CommandState.Effects
    private static let configuration = CommandConfiguration()

    static func id(_ number: Int) -> Data { Data((0..<16).map { UInt8(truncatingIfNeeded: number >> ($0 % 4 * 8)) }) }
    private static let listener = CommandListener.with { ($0.node, $0.number) = ("n1", 7) }

    static func submit(
        _ number: Int, noAnswer: Bool = false, ttl: Int64 = 10_000, until: CommandStatus = .answered, size: Int = 3,
        sender: String = "app", account: String = "", waiter: String = "n2"
    ) -> CommandSubmit {
        .with {
            ($0.id, $0.path, $0.noAnswer, $0.ttlMs) = (id(number), "Action.go", noAnswer, ttl)
            ($0.content, $0.sender, $0.account) = (Data(repeating: 49, count: size), sender, account)
            $0.waiter = .with { ($0.node, $0.until) = (waiter, until) }
        }
    }

    private func fails(_ code: ErrorCode, _ body: () throws -> Void) {
        #expect(throws: ApusError(code)) { try body() }
    }

    private func sent(_ effects: Effects) -> [Data] { effects.deliveries.map(\.entry.id) }

    @Test("A command is queued, sent, acknowledged and answered, and who waits is notified once")
    func life() throws {
        var (queue, effects) = (CommandState(), Effects())
        #expect(try queue.submit(Self.submit(1), Self.configuration, at: 0, &effects).status == .queued)
        #expect(effects == Effects())
        queue.listen(Self.listener, Self.configuration, at: 10, &effects)
        #expect(sent(effects) == [Self.id(1)] && queue.entry(Self.id(1))?.status == .sent)
        effects = Effects()
        queue.acknowledge([Self.id(1)], Self.configuration, at: 20, &effects)
        #expect(queue.entry(Self.id(1))?.status == .acknowledged && effects == Effects())
        let answer = CommandAnswer.with { ($0.id, $0.answer) = (Self.id(1), Data("2".utf8)) }
        try queue.answer(answer, Self.configuration, at: 30, &effects)
        #expect(effects.reached.map(\.node) == ["n2"] && effects.reached[0].entry.status == .answered)
        #expect(queue.open.isEmpty && queue.entry(Self.id(1))?.answer == Data("2".utf8))
        // The device repeats its answer, and the client its request.
        effects = Effects()
        try queue.answer(.with { ($0.id, $0.code) = (Self.id(1), 20_103) }, Self.configuration, at: 40, &effects)
        #expect(try queue.submit(Self.submit(1), Self.configuration, at: 50, &effects).status == .answered)
        #expect(effects == Effects())
    }

    @Test("Without an answer, the acknowledgement ends a command; a failure that follows counts")
    func noAnswer() throws {
        var (queue, effects) = (CommandState(), Effects())
        queue.listen(Self.listener, Self.configuration, at: 0, &effects)
        _ = try queue.submit(
            Self.submit(1, noAnswer: true, until: .acknowledged), Self.configuration, at: 0, &effects)
        queue.acknowledge([Self.id(1)], Self.configuration, at: 1, &effects)
        #expect(effects.reached.map(\.entry.status) == [.acknowledged] && queue.open.isEmpty)
        try queue.answer(.with { ($0.id, $0.code) = (Self.id(1), 21_006) }, Self.configuration, at: 2, &effects)
        #expect(queue.entry(Self.id(1))?.status == .failed && queue.entry(Self.id(1))?.code == 21_006)
    }

    @Test("A command that was never sent expires; one that was sent has failed with 20001, and a late answer counts")
    func expiry() throws {
        var (queue, effects) = (CommandState(), Effects())
        _ = try queue.submit(Self.submit(1, ttl: 100), Self.configuration, at: 0, &effects)
        #expect(queue.nextMs(Self.configuration) == 100)
        queue.advance(Self.configuration, at: 99, &effects)
        #expect(queue.open.count == 1)
        queue.advance(Self.configuration, at: 100, &effects)
        #expect(effects.reached.map(\.entry.status) == [.expired] && queue.entry(Self.id(1))?.code == 8000)
        effects = Effects()
        queue.listen(Self.listener, Self.configuration, at: 101, &effects)
        #expect(effects == Effects(), "what has expired is never sent")

        _ = try queue.submit(Self.submit(2, ttl: 100), Self.configuration, at: 200, &effects)
        effects = Effects()
        queue.advance(Self.configuration, at: 300, &effects)
        #expect(effects.reached.map(\.entry.code) == [20_001])
        try queue.answer(
            .with { ($0.id, $0.answer) = (Self.id(2), Data("1".utf8)) }, Self.configuration, at: 400, &effects)
        #expect(queue.entry(Self.id(2))?.status == .answered && queue.entry(Self.id(2))?.code == 0)

        _ = try queue.submit(Self.submit(3, ttl: 100), Self.configuration, at: 500, &effects)
        queue.acknowledge([Self.id(3)], Self.configuration, at: 510, &effects)
        queue.advance(Self.configuration, at: 510 + 599_999, &effects)
        #expect(queue.entry(Self.id(3))?.status == .acknowledged)
        queue.advance(Self.configuration, at: 510 + 600_000, &effects)
        #expect(queue.entry(Self.id(3))?.code == 21_002)
    }

    @Test("The order of a device says when the next command is sent")
    func orders() throws {
        for order in [CommandOrder.unspecified, .allAtOnce, .afterAcknowledgement, .afterAnswer] {
            var (queue, effects) = (CommandState(), Effects())
            queue.order = order
            for number in 1...3 { _ = try queue.submit(Self.submit(number), Self.configuration, at: 0, &effects) }
            queue.listen(Self.listener, Self.configuration, at: 1, &effects)
            let first = sent(effects).count
            effects = Effects()
            queue.acknowledge([Self.id(1)], Self.configuration, at: 2, &effects)
            let second = sent(effects).count
            effects = Effects()
            try queue.answer(.with { $0.id = Self.id(1) }, Self.configuration, at: 3, &effects)
            let counts = [first, second, sent(effects).count]
            switch order {
            case .afterAcknowledgement: #expect(counts == [1, 1, 0])
            case .afterAnswer: #expect(counts == [1, 0, 1])
            default: #expect(counts == [3, 0, 0])
            }
        }
    }

    @Test("What is not acknowledged is sent again, later each time, and at once to another connection")
    func resends() throws {
        var (queue, effects) = (CommandState(), Effects())
        queue.listen(Self.listener, Self.configuration, at: 0, &effects)
        _ = try queue.submit(Self.submit(1, ttl: 1_000_000), Self.configuration, at: 0, &effects)
        var times: [Int64] = []
        for _ in 0..<7 {
            let next = try #require(queue.nextMs(Self.configuration))
            times.append(next)
            effects = Effects()
            queue.advance(Self.configuration, at: next, &effects)
            #expect(sent(effects) == [Self.id(1)])
        }
        #expect(times == [5_000, 15_000, 35_000, 75_000, 135_000, 195_000, 255_000])
        effects = Effects()
        let other = CommandListener.with { ($0.node, $0.number) = ("n3", 9) }
        queue.listen(other, Self.configuration, at: 256_000, &effects)
        #expect(effects.deliveries.map(\.listener) == [other])
        // A device that has restarted may not know what it had acknowledged.
        queue.acknowledge([Self.id(1)], Self.configuration, at: 257_000, &effects)
        effects = Effects()
        queue.listen(Self.listener, Self.configuration, at: 258_000, &effects)
        #expect(sent(effects) == [Self.id(1)])
    }

    @Test("A queue is bounded: by number, by bytes, by the size of one command, and by what is sent at once")
    func bounds() throws {
        var (queue, effects) = (CommandState(), Effects())
        fails(.messageTooLarge) {
            _ = try queue.submit(Self.submit(0, size: 30_001), Self.configuration, at: 0, &effects)
        }
        for number in 1...4 {
            _ = try queue.submit(Self.submit(number, size: 30_000), Self.configuration, at: 0, &effects)
        }
        fails(.overloaded) { _ = try queue.submit(Self.submit(5, size: 30_000), Self.configuration, at: 0, &effects) }
        for number in 5...64 { _ = try queue.submit(Self.submit(number), Self.configuration, at: 0, &effects) }
        fails(.overloaded) { _ = try queue.submit(Self.submit(65), Self.configuration, at: 0, &effects) }
        #expect(try queue.serializedData().count < 256 << 10)
        queue.listen(Self.listener, Self.configuration, at: 1, &effects)
        #expect(effects.deliveries.count == 16)
        for number in 1...64 {
            let answer = CommandAnswer.with { ($0.id, $0.answer) = (Self.id(number), Data(count: 30_000)) }
            try queue.answer(answer, Self.configuration, at: 2, &effects)
        }
        #expect(queue.ended.count == 32 && queue.ended.reduce(0) { $0 + $1.answer.count } == 30_000)
        fails(.messageTooLarge) {
            let answer = CommandAnswer.with { ($0.id, $0.answer) = (Self.id(1), Data(count: 30_001)) }
            try queue.answer(answer, Self.configuration, at: 2, &effects)
        }
        for number in 0..<100 {
            let listener = CommandListener.with { ($0.node, $0.number) = ("n1", UInt64(number)) }
            queue.listen(listener, Self.configuration, at: 3, &effects)
        }
        #expect(queue.listeners.count == 4)
    }

    @Test("Reads leave room for commands, and never make the queue forget one (IV-D3)")
    func reads() throws {
        var (queue, effects) = (CommandState(), Effects())
        func read(_ number: Int) throws {
            var message = Self.submit(number, size: 0)
            message.path = "ProReadonly.battery"
            _ = try queue.submit(message, Self.configuration.live, at: 0, &effects)
        }
        for number in 1...8 { try read(number) }
        fails(.overloaded) { try read(9) }
        // A request that is repeated is no further read.
        try read(8)
        _ = try queue.submit(Self.submit(20), Self.configuration.live, at: 0, &effects)
        queue.listen(Self.listener, Self.configuration.live, at: 1, &effects)
        try queue.answer(.with { $0.id = Self.id(20) }, Self.configuration.live, at: 2, &effects)
        for number in 1...8 {
            try queue.answer(.with { $0.id = Self.id(number) }, Self.configuration.live, at: 3, &effects)
        }
        for number in 101...140 {
            try read(number)
            try queue.answer(.with { $0.id = Self.id(number) }, Self.configuration.live, at: 4, &effects)
        }
        #expect(queue.open.isEmpty && queue.ended.count == 8)
        #expect(queue.entry(Self.id(20))?.status == .answered && queue.entry(Self.id(140))?.status == .answered)
    }

    @Test("A full queue fits into a replicated state and into a record, with names and texts of any length")
    func sizes() throws {
        var most = Self.configuration
        (most.openMax, most.openByteCountMax, most.endedMax) = (1024, 160 << 10, 64)
        for (configuration, limit) in [(Self.configuration.live, 64 << 10), (most.live, 64 << 10), (most, 256 << 10)] {
            var (queue, effects) = (CommandState(), Effects())
            func submit(_ number: Int, _ size: Int) throws {
                var message = Self.submit(
                    number, ttl: 1 << 40, size: size, sender: String(repeating: "s", count: 63),
                    account: String(repeating: "a", count: 63), waiter: String(repeating: "n", count: 63))
                message.path = "Action." + String(repeating: "p", count: 64)
                _ = try queue.submit(message, configuration, at: 1 << 41, &effects)
                message.waiter.node = String(repeating: "m", count: 63)
                _ = try queue.submit(message, configuration, at: 1 << 41, &effects)
            }
            for number in 0..<64 {
                try submit(number, 1)
                let answer = CommandAnswer.with {
                    ($0.id, $0.code, $0.message) = (Self.id(number), 20_103, String(repeating: "\u{1F600}", count: 300))
                    $0.answer = Data(count: 30_000)
                }
                try queue.answer(answer, configuration, at: 1 << 41, &effects)
            }
            for number in 0..<4 {
                let listener = CommandListener.with {
                    ($0.node, $0.number) = (String(repeating: "l", count: 63), .max - UInt64(number))
                }
                queue.listen(listener, configuration, at: 1 << 41, &effects)
            }
            var number = 1000
            for size in [4096, 1000, 1] { while (try? submit(number, size)) != nil { number += 1 } }
            #expect(number > 1006)
            let size = try queue.serializedData().count
            #expect((limit / 2..<limit - 2048).contains(size), "\(size) of \(limit)")
        }
    }

    @Test("An id names one command of one sender, and a command can be cancelled until it is sent (21000, 10030)")
    func identity() throws {
        var (queue, effects) = (CommandState(), Effects())
        _ = try queue.submit(Self.submit(1), Self.configuration, at: 0, &effects)
        for other in [Self.submit(1, size: 4), Self.submit(1, noAnswer: true), Self.submit(1, sender: "other")] {
            fails(.duplicateMessage) { _ = try queue.submit(other, Self.configuration, at: 0, &effects) }
        }
        _ = try queue.submit(Self.submit(3, account: "a"), Self.configuration, at: 0, &effects)
        fails(.duplicateMessage) {
            _ = try queue.submit(Self.submit(3, account: "b"), Self.configuration, at: 0, &effects)
        }
        // A node of an earlier release does not name the account.
        for account in ["a", ""] {
            _ = try queue.submit(Self.submit(3, account: account), Self.configuration, at: 0, &effects)
        }
        _ = try queue.cancel(Self.id(3), Self.configuration, at: 0, &effects)
        effects = Effects()
        // Repeated at another node, which then waits too.
        _ = try queue.submit(Self.submit(1, waiter: "n3"), Self.configuration, at: 1, &effects)
        let cancelled = try queue.cancel(Self.id(1), Self.configuration, at: 2, &effects)
        #expect(cancelled.status == .failed && cancelled.code == 10_006)
        #expect(effects.reached.map(\.node) == ["n2", "n3"])
        #expect(try queue.cancel(Self.id(1), Self.configuration, at: 3, &effects) == cancelled, "repeated")
        fails(.targetUnknown) { _ = try queue.cancel(Self.id(2), Self.configuration, at: 3, &effects) }
        queue.listen(Self.listener, Self.configuration, at: 4, &effects)
        #expect(effects.deliveries.isEmpty)
        _ = try queue.submit(Self.submit(2), Self.configuration, at: 5, &effects)
        fails(.versionConflict) { _ = try queue.cancel(Self.id(2), Self.configuration, at: 6, &effects) }
    }

    @Test("An action has one of two forms, and its path and JSON are checked (20101, 20102)")
    func contents() throws {
        let one = try CommandContent(path: "Action.cameraOn", json: #"{ "ctlVal" : 1 }"#)
        #expect(one == (try CommandContent(path: "Action.cameraOn.ctlVal", json: " 1 ")))
        // A value of the greatest depth, in both forms.
        let deep = String(repeating: "[", count: 8) + String(repeating: "]", count: 8)
        #expect(
            try CommandContent(path: "Action.cameraOn", json: "{\"ctlVal\":\(deep)}")
                == CommandContent(path: "Action.cameraOn.ctlVal", json: deep))
        #expect(one.path == "Action.cameraOn" && one.bytes == Data("1".utf8))
        for path in [
            "", "Action", "action.cameraOn", "ProWritable.x", "Action.cameraOn.t", "Action.a.ctlVal.b", "Action.a b",
        ] {
            fails(.pathIllegal) { _ = try CommandContent(path: path, json: "1") }
        }
        for json in ["", "1", "{", #"{"ctlVal":}"#, #"{"setVal":1}"#, #"{"ctlVal":1,"t":2}"#, "{\"ctlVal\":\"\u{1}\"}"]
        {
            fails(.jsonInvalid) { _ = try CommandContent(path: "Action.cameraOn", json: json) }
        }
    }
}
