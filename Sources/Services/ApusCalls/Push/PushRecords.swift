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

    /// Registers an app, in place of its earlier registration. Durable on return.
    ///
    /// - Throws: 10007 if the account has ``PushRegistration/countMax`` other apps.
    func register(_ body: CallStoredPush) async throws(ApusError) {
        let others = try await pushes(of: body.account).filter { $0.access != body.access }
        guard others.count < PushRegistration.countMax else {
            throw ApusError(
                .overloaded, "the account has \(PushRegistration.countMax) apps that receive push notifications")
        }
        try await store.commit(Self.pushes.put(body, fence: .none, if: .any))
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
            limit: PushRegistration.countMax + 1)
        return page.records.map(\.body)
    }

    func push(account: String, access: String) async throws(ApusError) -> CallStoredPush? {
        try await store.record(Self.pushes, OrderedKey(.text(account), .text(access)))?.body
    }
}
