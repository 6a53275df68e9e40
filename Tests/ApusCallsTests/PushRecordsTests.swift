import ApusCalls
import ApusCore
import ApusStorage
import SwiftProtobuf
import Testing

@Suite("Registrations for push notifications (CALL-10)")
struct PushRecordsTests {
    private let store = MemoryRecordStore()
    private let records: CallRecords

    init() { records = CallRecords(store) }

    private func push(_ account: String, _ access: String, _ token: String, at time: Int64) -> CallStoredPush {
        .with {
            ($0.account, $0.access, $0.provider, $0.token) = (account, access, "fcm", token)
            $0.sinceMs = time
        }
    }

    /// The access ids of an account's apps that are notified.
    private func reached(_ account: String) async throws -> [String] {
        try await records.current(try await records.pushes(of: account)).map(\.access).sorted()
    }

    @Test("A phone that changes hands is called for its new account only, and one app has a token")
    func handedOver() async throws {
        try await records.register(push("anna", "phone", "t1", at: 1))
        try await records.register(push("anna", "tablet", "t2", at: 2))
        try await records.register(push("ben", "phone", "t1", at: 3))
        #expect(try await reached("anna") == ["tablet"])
        #expect(try await reached("ben") == ["phone"])
        #expect(try await records.push(account: "anna", access: "phone") == nil)
        // The same account with another access id.
        try await records.register(push("ben", "phone-2", "t1", at: 4))
        #expect(try await reached("ben") == ["phone-2"])
        // The former owner takes it back.
        try await records.register(push("anna", "phone", "t1", at: 5))
        #expect(try await reached("anna") == ["phone", "tablet"])
        #expect(try await reached("ben") == [])
        // Tokens of two providers are two.
        var other = push("ben", "phone", "t1", at: 6)
        other.provider = "webhook"
        try await records.register(other)
        #expect(try await reached("anna") == ["phone", "tablet"])
        #expect(try await reached("ben") == ["phone"])
    }

    @Test("An app that has a new token, or none any more, keeps its former one from nobody")
    func renewed() async throws {
        try await records.register(push("anna", "phone", "t1", at: 1))
        try await records.register(push("anna", "phone", "t2", at: 2))
        // Older than what is known of the token, if it were known still.
        try await records.register(push("ben", "phone", "t1", at: 1))
        #expect(try await reached("anna") == ["phone"])
        #expect(try await reached("ben") == ["phone"])
        try await records.unregister(account: "anna", access: "phone")
        try await records.unregister(account: "anna", access: "phone")
        try await records.register(push("ben", "tablet", "t2", at: 1))
        #expect(try await reached("anna") == [])
        #expect(try await reached("ben") == ["phone", "tablet"])
    }

    @Test("Of accounts that register a token at once, one has it", arguments: 1...10)
    func atOnce(round: Int64) async throws {
        await withTaskGroup(of: Void.self) { group in
            for account in 0..<8 {
                group.addTask {
                    // One that was refused says so (10007), and has no registration that counts.
                    try? await records.register(push("account-\(account)", "phone", "t", at: round))
                }
            }
        }
        var owners: [String] = []
        for account in 0..<8 where try await !reached("account-\(account)").isEmpty { owners.append("\(account)") }
        #expect(owners.count == 1, "\(owners)")
    }

    @Test("Of two tokens that one app registers at once, one is left, and no record of the other", arguments: 0..<10)
    func oneApp(round: Int64) async throws {
        await withTaskGroup(of: Void.self) { group in
            for token in ["t1", "t2", "t3", "t4"] {
                group.addTask { try? await records.register(push("anna", "phone", token, at: round)) }
            }
        }
        #expect(try await reached("anna").count == 1)
        try await records.unregister(account: "anna", access: "phone")
        let left = try await store.page(
            RecordScan(
                "push-tokens", index: nil, from: OrderedKey(), below: OrderedKey().end, token: nil, limit: 10))
        #expect(left.records.isEmpty)
    }

    @Test("A registration that a node of an earlier release has written counts, if it is the newest")
    func earlier() async throws {
        try await records.register(push("anna", "phone", "t1", at: 10))
        let (older, newer) = (push("ben", "phone", "t1", at: 9), push("ben", "phone", "t1", at: 11))
        #expect(try await records.current([older]).isEmpty)
        #expect(try await records.current([newer]) == [newer])
        #expect(try await records.current([push("ben", "phone", "t2", at: 1)]).count == 1)
    }
}
