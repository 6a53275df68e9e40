import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusOutgoing
import ApusSessions
import ApusWire
import Logging
import SwiftProtobuf

/// An owner of a call asks its own node to notify an app.
extension CallPush: NodeMessage {
    typealias Reply = CallPushTaken
    static var method: UInt16 { 0x0049 }
}

extension CallService {
    /// Adds the requests of apps that receive push notifications.
    func addPushRequests(to api: inout ClientAPI) {
        api.on(ClientRegisterPushRequest.self) { [self] request, call throws(ApusError) in
            guard webhook.isUsed else {
                throw ApusError(.unavailable, "this cluster sends no push notifications: push.webhook_url is not set")
            }
            let client = try Self.client(call.session)
            let registration = try PushRegistration(
                provider: request.provider, token: request.token, topic: request.topic)
            let mark = call.session.token
            try await records.register(
                .with {
                    ($0.account, $0.access) = (client.party.id, client.endpoint.rawValue)
                    ($0.tokenTag, $0.tokenIssuedS) = (mark.tag, mark.issuedAt)
                    ($0.provider, $0.token) = (registration.provider.rawValue, registration.token)
                    ($0.topic, $0.sinceMs) = (registration.topic, view.clock.wallMilliseconds())
                })
            return ClientRegisterPushResponse()
        }
        api.on(ClientUnregisterPushRequest.self) { [self] _, call throws(ApusError) in
            let client = try Self.client(call.session)
            try await records.unregister(account: client.party.id, access: client.endpoint.rawValue)
            return ClientUnregisterPushResponse()
        }
    }

    /// The called legs of a party: its clients that take calls, and its apps that receive push notifications.
    func callees(of party: CallParty, _ deadline: MonotonicTime) async throws(ApusError) -> [CallCallee] {
        let reached = try await ref(party).ask(CallReach(), timeout: try deadline.timeLeft())
        var pushed: Set<String> = []
        if webhook.isUsed, party.kind == .account {
            let oldest = view.clock.wallMilliseconds() - PushRegistration.keepTime
            let valid = try await records.pushes(of: party.id).filter { $0.sinceMs >= oldest && !isRevoked($0) }
            pushed = Set(try await records.current(valid).map(\.access))
        }
        let endpoints = reached.endpoints + pushed.subtracting(reached.endpoints).sorted()
        return endpoints.map { endpoint in
            .with { ($0.party, $0.endpoint, $0.byPush) = (party, endpoint, pushed.contains(endpoint)) }
        }
    }

    /// Notifies apps whose calls ring, until the task is cancelled. In each lane one after the other, so that the end
    /// of a call follows its notification.
    func pushNotices() async {
        await withDiscardingTaskGroup { group in
            for lane in pushes.lanes {
                group.addTask {
                    for await push in lane {
                        guard push.over else {
                            await self.push(push)
                            continue
                        }
                        self.webhook.cancel(id: push.id, then: await self.cancelNotice(of: push))
                        self.pushes.ended(push)
                    }
                }
            }
        }
    }

    /// Sends the notification. If the registration cannot be read, it is tried again as long as the call rings.
    private func push(_ push: CallPush) async {
        guard let message = await message(of: push, .ring, unless: { self.pushes.isOver(push) }) else {
            return pushes.skipped(push)
        }
        webhook.send(message)
    }

    /// What tells an app that a call is over which it has not taken; nil if it was not notified of it, or its time to
    /// ring is over.
    private func cancelNotice(of push: CallPush) async -> WebhookMessage? {
        guard push.cancel, !pushes.wasSkipped(push) else { return nil }
        return await message(of: push, .cancel, unless: { false })
    }

    /// A notification for an app; nil if it has no registration, or the call no longer rings.
    private func message(
        of push: CallPush, _ event: CallPushContent.Event, unless isOver: () -> Bool
    ) async -> WebhookMessage? {
        while !Task.isCancelled {
            let left = push.ringEndMs - view.clock.wallMilliseconds()
            guard left > 0, !isOver() else { return nil }
            do throws(ApusError) {
                return try await message(of: push, event, within: .milliseconds(left))
            } catch {
                limited.log(.warning, "An app cannot be notified of a call", metadata: Logger.facts(of: error))
                guard error.code != .badParameter else { return nil }
            }
            try? await Task.sleep(for: Self.pushRetryDelay)
        }
        return nil
    }

    private func message(
        of push: CallPush, _ event: CallPushContent.Event, within time: Duration
    ) async throws(ApusError) -> WebhookMessage? {
        guard let stored = try await records.push(account: push.party.id, access: push.endpoint) else { return nil }
        guard !isRevoked(stored), try await !records.current([stored]).isEmpty else {
            // If that fails, the next call tries it again.
            _ = try? await records.unregister(account: stored.account, access: stored.access)
            return nil
        }
        let registration = try PushRegistration(provider: stored.provider, token: stored.token, topic: stored.topic)
        let content = CallPushContent(
            event, call: push.call, caller: push.caller.id, called: push.party.id, type: push.type.rawValue,
            extra: String(decoding: push.extra, as: UTF8.self), startedMs: push.startedMs, ringEndMs: push.ringEndMs)
        return WebhookMessage(
            id: event == .ring ? push.id : "\(push.id).cancel", owner: push.party.id,
            body: content.message(to: registration, access: push.endpoint), expiresAt: .now() + time)
    }

    /// The token with which the app has registered was revoked. A registration of an earlier release names none.
    private func isRevoked(_ push: CallStoredPush) -> Bool {
        guard push.tokenIssuedS != 0, let account = AccountID(rawValue: push.account) else { return false }
        let mark = TokenMark(tag: push.tokenTag, issuedAt: push.tokenIssuedS, expires: 0)
        let authority = Authority(account: account, identities: [push.access], token: mark)
        do throws(ApusError) {
            try sessions.check(authority)
            return false
        } catch {
            return true
        }
    }

    private static let pushRetryDelay = Duration.milliseconds(500)
}

extension CallPush {
    /// The same for each repetition.
    var id: String { "\(call).\(endpoint)" }
}
