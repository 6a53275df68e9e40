import ApusAnswering
import ApusCore
import ApusStorage
import SwiftProtobuf
import Testing

@Suite("Shares of accounts in the record store (CALL-8, D13)")
struct AnsweringSharesTests {
    private let records = AnsweringRecords(MemoryRecordStore())

    // The optimizer of Swift 6.3 crashes if it is inlined into the tests.
    @inline(never)
    private func begin(
        _ number: Int, of account: String, counting bytes: UInt64, within shares: AnsweringShares?
    ) async throws -> (message: AnsweringMessage, version: UInt64) {
        let digits = String(number, radix: 16)
        let call = "00a-" + String(repeating: "0", count: 32 - digits.count) + digits
        let message = AnsweringMessage.with {
            ($0.call, $0.party, $0.account) = (call, "account/\(account)", account)
            ($0.state, $0.startedMs, $0.untilMs, $0.expiresMs) = (.recording, 1_000_000, 1_030_000, 90_000_000)
        }
        return try await records.put(message, version: nil, counting: bytes, within: shares)
    }

    private func isRefused(_ body: () async throws -> Void) async -> Bool {
        do {
            try await body()
            return false
        } catch { return (error as? ApusError)?.code == .overloaded }
    }

    @Test("An account has its share of the bytes, whatever its machines are, and leaves room for others")
    func shares() async throws {
        let shares = AnsweringShares(accountMax: 600, allMax: 900)
        var (own, refused) = (0, 0)
        for number in 0..<50 {
            if await isRefused({ _ = try await begin(number, of: "loud", counting: 100, within: shares) }) {
                refused += 1
            } else {
                own += 1
            }
        }
        #expect(own == 6 && refused == 44)
        // Others have eight ninths of what is left each.
        #expect(await !isRefused { _ = try await begin(60, of: "quiet", counting: 200, within: shares) })
        #expect(await isRefused { _ = try await begin(61, of: "quiet", counting: 100, within: shares) })
        #expect(await !isRefused { _ = try await begin(62, of: "third", counting: 80, within: shares) })
        let bytes = try await records.bytes(of: "loud")
        #expect(bytes.own == 600 && bytes.all == 880)
    }

    @Test("What a message is counted with is its size once it is stored, and nothing when it is deleted")
    func changes() async throws {
        let shares = AnsweringShares(accountMax: 1000, allMax: 10_000)
        let (message, version) = try await begin(1, of: "a", counting: 900, within: shares)
        #expect(message.countedBytes == 900)
        try await records.store(message, version)
        let stored = try #require(try await records.message(message.call))
        #expect(try await records.bytes(of: "a").own == stored.body.bytes && stored.body.bytes < 900)
        try await records.delete(stored.body, stored.version)
        let bytes = try await records.bytes(of: "a")
        #expect(bytes.own == 0 && bytes.all == 0)
        // A repetition, such as by another node, has no effect.
        await #expect(throws: ApusError(.versionConflict)) { try await records.delete(stored.body, stored.version) }
        #expect(try await records.bytes(of: "a").own == 0)
    }

    @Test("Messages that begin and end at once at several nodes are all counted, once")
    func atOnce() async throws {
        try await withThrowingTaskGroup(of: Void.self) { group in
            for number in 0..<24 {
                group.addTask {
                    let (message, version) = try await begin(
                        number, of: "account-\(number % 3)", counting: 50, within: nil)
                    if number % 2 == 0 { try await records.delete(message, version) }
                }
            }
            try await group.waitForAll()
        }
        for account in 0..<3 {
            let bytes = try await records.bytes(of: "account-\(account)")
            #expect(bytes.own == 200 && bytes.all == 600, "\(bytes)")
        }
    }

    @Test("Any sums stay within the bounds, and an account alone has what one account may have")
    func room() {
        let shares = AnsweringShares(accountMax: 1 << 20, allMax: 4 << 20)
        #expect(shares.room(own: 0, all: 0) == 1 << 20)
        for own in stride(from: UInt64(0), through: 5 << 20, by: 100_003) {
            for others in stride(from: UInt64(0), through: 5 << 20, by: 100_019) {
                let room = shares.room(own: own, all: own + others)
                #expect(room == 0 || (own + room <= 1 << 20 && own + others + room <= 4 << 20))
            }
        }
        // Totals that are wrong, as of a store that was mended by hand, make no node fail.
        #expect(shares.room(own: .max, all: 0) == 0 && shares.room(own: 0, all: .max) == 0)
    }
}
