import ApusCommands
import ApusCore
import Foundation
import SwiftProtobuf
import Testing

@Suite("Commands whose senders lose their right to the device (IV-B10)")
struct CommandRightTests {
    /// A queue, and what it has caused since it was last looked at.
    private struct Driver {
        private static let configuration = CommandConfiguration()

        var queue = CommandState()
        private var effects = CommandState.Effects()

        struct Caused {
            var sent: [Data]
            /// The codes of commands for whose end a node waits.
            var codes: [Int32]
            var needsRights: Bool
        }

        mutating func taken() -> Caused {
            defer { effects = CommandState.Effects() }
            return Caused(
                sent: effects.deliveries.map(\.entry.id), codes: effects.reached.map(\.entry.code),
                needsRights: effects.needsRights)
        }

        mutating func submit(
            _ number: Int, _ account: String, at now: Int64 = 1, path: String? = nil, token: CommandToken? = nil
        ) throws {
            var message = CommandQueueTests.submit(number, ttl: 1_000_000, account: account)
            if let path { message.path = path }
            if let token { message.token = token }
            _ = try queue.submit(message, Self.configuration, at: now, &effects)
        }

        mutating func listen(at now: Int64, _ number: UInt64 = 7) {
            let listener = CommandListener.with { ($0.node, $0.number) = ("n1", number) }
            queue.listen(listener, Self.configuration, at: now, &effects)
        }

        mutating func leave(_ number: UInt64 = 7) {
            queue.leave(.with { ($0.node, $0.number) = ("n1", number) })
        }

        mutating func apply(
            _ controlling: [String], viewing: [String] = [], at now: Int64, readMs: Int64 = 0,
            valid: [CommandSender] = [], ended: [CommandSender] = []
        ) {
            let rights = CommandRights.with {
                ($0.controlling, $0.viewing, $0.readMs) = (controlling, viewing, readMs)
                $0.valid = valid
                $0.ended = ended.map { sender in
                    .with { ($0.sender, $0.code) = (sender, ErrorCode.tokenInvalid.number) }
                }
            }
            queue.apply(rights, Self.configuration, at: now, &effects)
        }

        mutating func acknowledge(_ number: Int, at now: Int64) {
            queue.acknowledge([CommandQueueTests.id(number)], Self.configuration, at: now, &effects)
        }

        mutating func answer(_ number: Int, at now: Int64) throws {
            let answer = CommandAnswer.with { $0.id = CommandQueueTests.id(number) }
            try queue.answer(answer, Self.configuration, at: now, &effects)
        }

        mutating func advance(at now: Int64) { queue.advance(Self.configuration, at: now, &effects) }

        var nextMs: Int64? { queue.nextMs(Self.configuration) }

        subscript(number: Int) -> CommandEntry { queue.entry(CommandQueueTests.id(number)) ?? CommandEntry() }
    }

    /// Long after the commands were accepted.
    private static let later: Int64 = 60_000

    private static func ids(_ numbers: Int...) -> [Data] { numbers.map { CommandQueueTests.id($0) } }

    @Test("What has waited is sent after another check, and what was accepted later behind it")
    func checked() throws {
        var driver = Driver()
        try driver.submit(1, "guest")
        driver.listen(at: Self.later)
        let held = driver.taken()
        #expect(held.sent.isEmpty && held.needsRights && driver[1].status == .queued)
        try driver.submit(2, "owner", at: Self.later)
        let fresh = driver.taken()
        #expect(fresh.sent.isEmpty && !fresh.needsRights)
        driver.apply(["owner", "guest"], at: Self.later + 10)
        let allowed = driver.taken()
        #expect(allowed.sent == Self.ids(1, 2) && !allowed.needsRights && driver[1].status == .sent)
    }

    @Test("A command without a right fails with 8003 and is never sent, and who waits for it is notified")
    func lost() throws {
        var driver = Driver()
        try driver.submit(1, "guest")
        try driver.submit(2, "owner")
        driver.listen(at: Self.later)
        driver.apply(["owner"], viewing: ["guest"], at: Self.later + 10)
        let ended = driver.taken()
        #expect(ended.codes == [8003] && ended.sent == Self.ids(2))
        let entry = driver[1]
        #expect(entry.status == .failed && entry.code == 8003)
        // Nothing brings it back, and an answer of a device that never had it has no effect.
        driver.listen(at: Self.later + 20)
        driver.apply(["owner", "guest"], at: Self.later + 30)
        try driver.answer(1, at: Self.later + 40)
        let sent = driver.taken().sent
        #expect(!sent.contains(CommandQueueTests.id(1)) && driver[1] == entry)
    }

    @Test("A change of rights ends commands at once, also while the device is away")
    func away() throws {
        var driver = Driver()
        try driver.submit(1, "guest")
        driver.apply(["owner"], at: 10)
        let ended = driver.taken()
        #expect(ended.codes == [8003] && driver.queue.open.isEmpty)
    }

    @Test("A command that was sent may have been carried out: its end is an assumption, and a late answer counts")
    func sent() throws {
        var driver = Driver()
        driver.listen(at: 1)
        try driver.submit(1, "guest")
        try driver.submit(2, "guest")
        driver.acknowledge(2, at: 2)
        driver.apply(["owner"], at: 3)
        #expect(driver[1].code == 8003)
        #expect(driver[2].status == .acknowledged, "the device has it and goes on")
        try driver.answer(1, at: 4)
        #expect(driver[1].status == .answered && driver[1].code == 0)
        // A device that connects again may have restarted: it does not receive it again.
        _ = driver.taken()
        driver.listen(at: Self.later)
        let held = driver.taken()
        #expect(held.sent.isEmpty && held.needsRights)
        driver.apply(["owner"], at: Self.later + 1)
        let ended = driver.taken()
        #expect(ended.sent.isEmpty && driver[2].code == 8003)
    }

    @Test("What was sent and acknowledged goes to a new connection once the right was checked")
    func repeated() throws {
        var driver = Driver()
        driver.listen(at: 1)
        try driver.submit(1, "guest")
        try driver.submit(2, "guest")
        driver.acknowledge(2, at: 2)
        _ = driver.taken()
        driver.listen(at: 100, 9)
        let fresh = driver.taken()
        #expect(fresh.sent == Self.ids(1, 2), "the right was checked within a second")
        driver.leave()
        driver.leave(9)
        driver.listen(at: 2_000)
        let held = driver.taken()
        #expect(held.sent.isEmpty && held.needsRights)
        driver.apply(["guest"], at: 2_010)
        let allowed = driver.taken()
        #expect(allowed.sent == Self.ids(1, 2) && !allowed.needsRights)
    }

    @Test("A check that is not answered is asked for again, and at once by a new owner of the device")
    func again() throws {
        var driver = Driver()
        try driver.submit(1, "guest")
        driver.listen(at: Self.later)
        let first = driver.taken()
        #expect(first.needsRights && driver.nextMs == Self.later + 5_000)
        driver.advance(at: Self.later + 4_999)
        let early = driver.taken()
        #expect(!early.needsRights)
        driver.advance(at: Self.later + 5_000)
        let second = driver.taken()
        #expect(second.needsRights)
        driver.listen(at: Self.later + 5_001)
        let third = driver.taken()
        #expect(third.needsRights && third.sent.isEmpty)
    }

    @Test("A command that another one has held back is checked before it is sent")
    func ordered() throws {
        var driver = Driver()
        driver.queue.order = .afterAnswer
        driver.listen(at: 1)
        try driver.submit(1, "guest")
        try driver.submit(2, "guest")
        let first = driver.taken()
        #expect(first.sent == Self.ids(1))
        driver.acknowledge(1, at: 2)
        try driver.answer(1, at: 3_000)
        let held = driver.taken()
        #expect(held.sent.isEmpty && held.needsRights)
        driver.apply([], at: 3_010)
        let ended = driver.taken()
        #expect(ended.sent.isEmpty && driver[2].code == 8003)
    }

    @Test("Who may view a device reads its values, and a command of an earlier release is not checked")
    func others() throws {
        var driver = Driver()
        try driver.submit(1, "viewer", path: "ProReadonly.battery")
        try driver.submit(2, "")
        driver.listen(at: Self.later)
        let first = driver.taken()
        #expect(first.sent.isEmpty && first.needsRights)
        driver.apply(["owner"], viewing: ["viewer"], at: Self.later + 10)
        let second = driver.taken()
        #expect(second.sent == Self.ids(1, 2))
    }

    @Test("Rights that were read before a command was accepted do not end it, and change nothing that is not checked")
    func outdated() throws {
        var driver = Driver()
        try driver.submit(1, "guest", at: 100)
        driver.apply(["owner"], at: 110, readMs: 90)
        #expect(driver[1].status == .queued)
        let before = driver.queue
        driver.apply(["owner", "guest"], at: 120)
        #expect(driver.queue == before, "the state is written only if something changes")
        driver.apply(["owner"], at: 130)
        #expect(driver[1].code == 8003)
    }

    @Test("A clock that was set back keeps no command from being checked")
    func clockBack() throws {
        var driver = Driver()
        try driver.submit(1, "guest", at: 3_600_000)
        driver.listen(at: 10_000)
        let first = driver.taken()
        #expect(first.sent.isEmpty && first.needsRights)
        driver.apply(["guest"], at: 10_010)
        let second = driver.taken()
        #expect(second.sent == Self.ids(1))
    }

    private static let token = CommandToken.with { ($0.tag, $0.issuedS, $0.expiresS) = (7, 1000, 2000) }

    @Test("A command whose sender's token was revoked fails with 12001, and the device never receives it (IV-A6)")
    func revoked() throws {
        var driver = Driver()
        try driver.submit(1, "owner", token: Self.token)
        try driver.submit(2, "owner", token: .with { $0.tag = 8 })
        driver.listen(at: Self.later)
        let held = driver.taken()
        #expect(held.sent.isEmpty && held.needsRights)
        let senders = driver.queue.senders
        #expect(senders.map(\.token.tag) == [7, 8] && senders[0].account == "owner" && senders[0].access == "app")
        driver.apply(["owner"], at: Self.later + 10, valid: [senders[1]], ended: [senders[0]])
        let ended = driver.taken()
        #expect(ended.codes == [ErrorCode.tokenInvalid.number] && ended.sent == Self.ids(2) && !ended.needsRights)
        driver.listen(at: Self.later + 30, 9)
        let again = driver.taken().sent
        #expect(again == Self.ids(2), "the ended one does not come back")
    }

    @Test("Rights that do not say whether a token is valid end commands, and let none be sent")
    func unsaid() throws {
        var driver = Driver()
        try driver.submit(1, "owner", token: Self.token)
        driver.listen(at: Self.later)
        _ = driver.taken()
        // As a node sends them when the accounts of the device have changed.
        driver.apply(["owner", "guest"], at: Self.later + 10)
        let first = driver.taken().sent
        #expect(first.isEmpty && driver[1].status == .queued)
        // The answer for another token, such as one that was asked for before.
        var other = driver.queue.senders[0]
        other.token.tag = 9
        driver.apply(["owner"], at: Self.later + 20, valid: [other])
        let second = driver.taken().sent
        #expect(second.isEmpty)
        driver.apply(["owner"], at: Self.later + 30, valid: driver.queue.senders)
        let third = driver.taken().sent
        #expect(third == Self.ids(1))
        driver.apply(["guest"], at: Self.later + 40)
        #expect(driver[1].code == 8003)
    }

    @Test("A queue names each sender once, and one check is enough for all commands that wait")
    func senders() throws {
        var driver = Driver()
        for number in 1...6 {
            try driver.submit(number, "owner", token: .with { $0.tag = UInt64(number % 2 + 1) })
        }
        #expect(driver.queue.senders.map(\.token.tag) == [2, 1])
        driver.listen(at: Self.later)
        driver.apply(["owner"], at: Self.later + 1, valid: driver.queue.senders)
        let sent = driver.taken()
        #expect(sent.sent == Self.ids(1, 2, 3, 4, 5, 6))
        driver.advance(at: Self.later + 2)
        let after = driver.taken()
        #expect(!after.needsRights)
    }
}
