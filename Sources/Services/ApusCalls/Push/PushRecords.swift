import ApusCore
import ApusStorage
import SwiftProtobuf

extension CallRecords {
    /// Apps that receive push notifications, with an index by account.
    static let pushes = RecordCollection<CallStoredPush>(
        "push-registrations", layout: 1, key: { OrderedKey(.text($0.account), .text($0.access)) },
        indexes: [
            RecordIndex("account") { [OrderedKey(.text($0.account), .signed($0.sinceMs), .text($0.access))] }
        ])

    /// Registers an app, in place of its earlier registration. Durable on return. Of an account with
    /// ``PushRegistration/countMax`` other apps the oldest gives way: it may be lost or reinstalled.
    func register(_ body: CallStoredPush) async throws(ApusError) {
        let others = try await pushes(of: body.account).filter { $0.access != body.access }
        try await store.commit(Self.pushes.put(body, fence: .none, if: .any))
        for other in others.prefix(max(0, others.count + 1 - PushRegistration.countMax)) {
            try await unregister(account: other.account, access: other.access)
        }
    }

    /// Ends the registration of an app, if there is one.
    func unregister(account: String, access: String) async throws(ApusError) {
        let key = OrderedKey(.text(account), .text(access))
        try await store.commit(Self.pushes.erase(key, fence: .none, if: .any))
    }

    /// The registrations of an account, the oldest first.
    func pushes(of account: String) async throws(ApusError) -> [CallStoredPush] {
        let page = try await store.page(
            Self.pushes, by: "account", prefix: OrderedKey(.text(account)), after: nil,
            limit: 2 * PushRegistration.countMax)
        return page.records.map(\.body)
    }

    func push(account: String, access: String) async throws(ApusError) -> CallStoredPush? {
        try await store.record(Self.pushes, OrderedKey(.text(account), .text(access)))?.body
    }
}
