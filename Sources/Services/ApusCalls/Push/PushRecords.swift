package import ApusCore
import ApusCrypto
import ApusStorage
import Foundation
import SwiftProtobuf

extension CallRecords {
    /// Apps that receive push notifications, with an index by account.
    static let pushes = RecordCollection<CallStoredPush>(
        "push-registrations", layout: 1, key: { key(of: $0.account, $0.access) },
        indexes: [
            RecordIndex("account") { [OrderedKey(.text($0.account), .signed($0.sinceMs), .text($0.access))] }
        ])
    /// The app that has registered a token last. A phone that changes hands keeps its token, and is called for its new
    /// account only.
    static let pushOwners = RecordCollection<CallPushOwner>(
        "push-tokens", layout: 1, key: { OrderedKey(.text($0.provider), .text($0.token)) })

    /// Attempts of a change if others change the same token.
    private static let attemptsMax = 16

    private static func key(of account: String, _ access: String) -> OrderedKey {
        OrderedKey(.text(account), .text(access))
    }

    /// Registers an app, in place of its earlier registration, and of that of another app with the same token. Durable
    /// on return. Of an account with ``PushRegistration/countMax`` other apps the oldest gives way: it may be lost or
    /// reinstalled.
    ///
    /// - Throws: 10007 if too many others register the same token at once.
    package func register(_ body: CallStoredPush) async throws(ApusError) {
        let others = try await pushes(of: body.account).filter { $0.access != body.access }
        try await change { () async throws(ApusError) in
            let registered = try await registration(account: body.account, access: body.access)
            let former = registered?.body
            let owner = try await store.record(Self.pushOwners, Self.pushOwners.key(of: body.owner))
            var writes = [
                // Two registrations of one app at once: each must remove the token of the earlier one.
                try Self.pushes.put(
                    body, fence: .none, if: registered.map { .version($0.version) } ?? .absent),
                try Self.pushOwners.put(
                    body.owner, fence: .none, if: owner.map { .version($0.version) } ?? .absent),
            ]
            if let owner = owner?.body, !owner.isOf(body) {
                let key = Self.key(of: owner.account, owner.access)
                let other = try await store.record(Self.pushes, key)
                // It may have another token since.
                if let other, other.body.owner.token == owner.token {
                    writes.append(Self.pushes.erase(key, fence: .none, if: .version(other.version)))
                }
            }
            if let former, former.owner.token != body.owner.token { writes += try await eraseOwner(of: former) }
            return writes
        }
        for other in others.prefix(max(0, others.count + 1 - PushRegistration.countMax)) {
            try await unregister(account: other.account, access: other.access)
        }
    }

    /// Ends the registration of an app, if there is one.
    package func unregister(account: String, access: String) async throws(ApusError) {
        try await change { () async throws(ApusError) in
            guard let push = try await registration(account: account, access: access) else { return [] }
            let erased = Self.pushes.erase(Self.key(of: account, access), fence: .none, if: .version(push.version))
            return [erased] + (try await eraseOwner(of: push.body))
        }
    }

    /// Writes what the closure returns as one step, and asks it again if others have changed a record in between.
    private func change(_ writes: () async throws(ApusError) -> [RecordWrite]) async throws(ApusError) {
        let busy = ApusError(.overloaded, "the token is being registered by too many others; try again")
        try await store.change(attempts: Self.attemptsMax, otherwise: busy) {
            () async throws(ApusError) -> (Void, RecordStep?) in
            let step = try await writes()
            return ((), step.isEmpty ? nil : RecordStep(step))
        }
    }

    /// Removes the record of a registration's token, unless the token is another app's by now.
    private func eraseOwner(of push: CallStoredPush) async throws(ApusError) -> [RecordWrite] {
        let key = Self.pushOwners.key(of: push.owner)
        guard let owner = try await store.record(Self.pushOwners, key), owner.body.isOf(push) else { return [] }
        return [Self.pushOwners.erase(key, fence: .none, if: .version(owner.version))]
    }

    /// The registrations of an account, the oldest first.
    package func pushes(of account: String) async throws(ApusError) -> [CallStoredPush] {
        let page = try await store.page(
            Self.pushes, by: "account", prefix: OrderedKey(.text(account)), after: nil,
            limit: 2 * PushRegistration.countMax)
        return page.records.map(\.body)
    }

    package func push(account: String, access: String) async throws(ApusError) -> CallStoredPush? {
        try await registration(account: account, access: access)?.body
    }

    private func registration(
        account: String, access: String
    ) async throws(ApusError) -> Record<CallStoredPush>? {
        try await store.record(Self.pushes, Self.key(of: account, access))
    }

    /// Those of the registrations whose tokens no other app has registered since.
    package func current(_ pushes: [CallStoredPush]) async throws(ApusError) -> [CallStoredPush] {
        let owners = try await store.records(Self.pushOwners, pushes.map { Self.pushOwners.key(of: $0.owner) })
        // Nodes of earlier releases write no owners, so a registration may be newer than what is known of its token.
        return zip(pushes, owners).filter { push, owner in
            owner.map { $0.body.isOf(push) || $0.body.sinceMs < push.sinceMs } ?? true
        }.map(\.0)
    }
}

extension CallStoredPush {
    /// The record of its token.
    fileprivate var owner: CallPushOwner {
        .with {
            ($0.provider, $0.account, $0.access, $0.sinceMs) = (provider, account, access, sinceMs)
            $0.token = Hexadecimal.text(SHA256.hash(data: Array(token.utf8)))
        }
    }
}

extension CallPushOwner {
    fileprivate func isOf(_ push: CallStoredPush) -> Bool { account == push.account && access == push.access }
}
