import ApusCore
import ApusDevice
import Foundation
import Testing

@Suite("The journal of a device's commands (IV-D15)")
struct CommandJournalTests {
    private static func path() -> String {
        FileManager.default.temporaryDirectory.appendingPathComponent("journal-\(UUID().uuidString)").path
    }

    private static func id(_ number: Int) -> String {
        let digits = String(number, radix: 16)
        return String(repeating: "0", count: 32 - digits.count) + digits
    }

    private static let answer = CommandLedger.Answer(
        code: 0, message: "", content: Array("{\"a\":1}".utf8), isAction: true)

    @Test("What was begun, has ended and is done is known after a restart")
    func restart() throws {
        let path = Self.path()
        defer { unlink(path) }
        do {
            let journal = try CommandJournal(path: path)
            try journal.append(.begun(Self.id(1)), isSynced: true)
            try journal.append(.begun(Self.id(2)), isSynced: true)
            try journal.append(.ended(Self.id(2), Self.answer), isSynced: true)
            try journal.append(.begun(Self.id(3)), isSynced: true)
            try journal.append(.ended(Self.id(3), Self.answer), isSynced: true)
            try journal.append(.finished(Self.id(3)), isSynced: false)
            #expect(throws: ApusError(.stateForeign)) { _ = try CommandJournal(path: path) }
        }
        let ledger = try CommandJournal(path: path).ledger
        #expect(ledger.interrupted == [Self.id(1)])
        #expect(ledger.answers.map(\.id) == [Self.id(2)] && ledger.answers[0].answer == Self.answer)
        #expect(ledger[Self.id(3)] == .done && ledger.openCount == 2)
    }

    @Test("A torn or damaged line is skipped, at every place of the file, and what follows is read")
    func damage() throws {
        let path = Self.path()
        defer { unlink(path) }
        do {
            let journal = try CommandJournal(path: path)
            for number in 1...3 { try journal.append(.begun(Self.id(number)), isSynced: false) }
        }
        let whole = try Data(contentsOf: URL(fileURLWithPath: path))
        for place in whole.indices {
            var damaged = whole
            damaged[place] ^= 0x11
            try damaged.write(to: URL(fileURLWithPath: path))
            do {
                let journal = try CommandJournal(path: path)
                #expect(journal.ledger.interrupted.count >= 1 && journal.damagedCount >= 1, "at \(place)")
                #expect(Set(journal.ledger.interrupted).isSubset(of: (1...3).map(Self.id)))
            }
            // Cut off anywhere, the entry that follows is not glued to the torn one.
            try whole.prefix(place).write(to: URL(fileURLWithPath: path))
            do {
                try CommandJournal(path: path).append(.begun(Self.id(9)), isSynced: false)
            }
            #expect(try CommandJournal(path: path).ledger[Self.id(9)] == .begun, "at \(place)")
        }
    }

    @Test("The file stays small: it is replaced by what is still needed, and remembers the newest thousand")
    func size() throws {
        let path = Self.path()
        defer { unlink(path) }
        let count = 20_000
        do {
            let journal = try CommandJournal(path: path)
            try journal.append(.begun(Self.id(1_000_000)), isSynced: false)
            for number in 1...count {
                try journal.append(.begun(Self.id(number)), isSynced: false)
                try journal.append(.ended(Self.id(number), Self.answer), isSynced: false)
                try journal.append(.finished(Self.id(number)), isSynced: false)
            }
        }
        let size = try #require(try FileManager.default.attributesOfItem(atPath: path)[.size] as? Int)
        #expect(size <= CommandJournal.byteCountMax)
        let ledger = try CommandJournal(path: path).ledger
        #expect(ledger.interrupted == [Self.id(1_000_000)])
        #expect(ledger[Self.id(count)] == .done && ledger[Self.id(count - 1000)] == .done && ledger[Self.id(1)] == nil)
    }

    @Test("A disk that is full is 10021, and the journal goes on when there is space")
    func full() throws {
        #expect(throws: ApusError(.storageFailed)) {
            try CommandJournal(path: "/dev/full").append(.begun(Self.id(1)), isSynced: false)
        }
        #expect(throws: ApusError(.storageFailed)) { _ = try CommandJournal(path: "/nonexistent/journal") }
    }
}
