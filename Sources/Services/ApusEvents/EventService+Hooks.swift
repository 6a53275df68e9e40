import ApusClientAPI
import ApusCluster
import ApusContract
package import ApusCore
import ApusSessions
import ApusWire
import CoreMetrics
import Foundation
import Logging
import SwiftProtobuf
import Synchronization

// Hooks: the endpoints of integrators that receive events (IV-D10) and raw data (IV-D12).

extension EventService {
    func addHookRequests(to api: inout ClientAPI) {
        api.on(ClientPutHookRequest.self, orderKey: { $0.customer }) { [self] request, call throws(ApusError) in
            try await put(request, call)
        }
        api.on(ClientListHooksRequest.self) { [self] request, call throws(ApusError) in
            let customer = try await customer(request.customer, call)
            var found: [ClientHook] = []
            for hook in try await records.hooks(of: customer) {
                let queue = try await queue(hook.hook, of: customer).ask(HookLook(), timeout: try call.timeLeft())
                found.append(ClientHook(hook, queue))
            }
            return .with { $0.hooks = found }
        }
        api.on(ClientDeleteHookRequest.self, orderKey: { $0.customer }) { [self] request, call throws(ApusError) in
            let customer = try await customer(request.customer, call)
            let name = try Self.name(request.hook)
            guard try await records.hook(name, of: customer) != nil else {
                throw ApusError(.targetUnknown, "no such hook")
            }
            // The events come first: without the hook, no request could drop them.
            try await dropAll(name, of: customer)
            try await records.erase(name, of: customer)
            hooks.forget(customer)
            // A delivery may have put events aside in between. None does so without the hook.
            try await dropAll(name, of: customer)
            return ClientDeleteHookResponse()
        }
        addFailedEventRequests(to: &api)
        api.on(ClientSendToServerRequest.self, byteCountMax: 2 * EventConfiguration.dataByteCountMax) {
            [self] request, call throws(ApusError) in
            let data = try await send(request, call)
            return .with { $0.data = Data(data) }
        }
    }

    /// The customer that a request names. ``CustomerID/none`` stands for the cluster itself, which operators manage.
    ///
    /// - Throws: as ``ClientCall/customer(named:)``; 8002 for an unknown customer.
    func customer(_ name: String, _ call: ClientCall) async throws(ApusError) -> String {
        let customer = try call.customer(named: name)
        try await sessions.check(customer)
        return customer?.rawValue ?? CustomerID.none
    }

    static func name(_ text: String) throws(ApusError) -> String {
        try AccessID(checking: text, "the hook").rawValue
    }

    private func put(_ request: ClientPutHookRequest, _ call: ClientCall) async throws(ApusError)
        -> ClientPutHookResponse
    {
        let customer = try await customer(request.customer, call)
        let name = try Self.name(request.hook)
        try check(request.url, isOperator: call.session.role == .admin)
        let events = try Set(
            request.events.map { text throws(ApusError) in
                guard let kind = HookEventKind(rawValue: text) else {
                    let names = HookEventKind.allCases.map(\.rawValue).joined(separator: ", ")
                    throw ApusError(.badParameter, "an event of a hook is one of \(names)")
                }
                return kind
            })
        guard events.count == request.events.count else {
            throw ApusError(.badParameter, "an event of a hook is named twice")
        }
        var secret: [UInt8] = []
        let stored = try await records.put(name, of: customer, countMax: configuration.hooksMax) { hook in
            (hook.url, hook.events, hook.messages) = (request.url, events.map(\.rawValue).sorted(), request.messages)
            hook.changedMs = now
            if hook.createdMs == 0 { hook.createdMs = now }
            hook.byOperator = call.session.role == .admin
            secret = []
            guard hook.secret.isEmpty || request.newSecret else { return }
            secret = (0..<32).map { _ in UInt8.random(in: 0...(.max)) }
            if !hook.secret.isEmpty {
                hook.formerSecret = hook.secret
                hook.formerUntilS = now / 1000 + EventConfiguration.formerSecretTime
            }
            hook.secret = Data(Hexadecimal.text(secret).utf8)
        }
        hooks.forget(customer)
        return .with { ($0.hook, $0.secret) = (ClientHook(stored, HookQueue()), Hexadecimal.text(secret)) }
    }

    /// - Throws: 21031 if the text is not a URL of a hook, 12004 for a host that an integrator may not name.
    private func check(_ text: String, isOperator: Bool) throws(ApusError) {
        guard let url = HookURL(text) else {
            throw ApusError(.badParameter, "the URL is http://HOST… or https://HOST…, without a user or a fragment")
        }
        guard isOperator || configuration.allows(host: url.host) else { throw Self.hostNotAllowed }
    }

    private static let hostNotAllowed = ApusError(
        .notAllowed, "the operators have not allowed this host (hooks.hosts)")

    /// Sends a request to the endpoint of a hook.
    ///
    /// - Throws: as ``ServerPoster/post(_:)``; 12004 if the operators removed the host from `hooks.hosts` after the
    ///   hook was set.
    private func post(
        _ body: JSON, id: String, to hook: HookStored, _ timeout: Duration, answerByteCountMax: Int?
    ) async throws(ApusError) -> ServerAnswer {
        guard hook.byOperator || configuration.allows(host: URLComponents(string: hook.url)?.host ?? "") else {
            throw Self.hostNotAllowed
        }
        return try await poster.post(
            ServerPost(
                id: id, url: hook.url, body: Array(body.text.utf8), secrets: hook.secrets(at: now / 1000),
                timeout: timeout, answerByteCountMax: answerByteCountMax, isForOperators: hook.byOperator))
    }

    // MARK: - Events

    /// Writes an event for each hook that subscribes to it, and was there when it happened. The events are durable when
    /// this returns, except those that a full queue drops.
    func enqueue(_ event: HookEvent, customer: String) async throws(ApusError) {
        for hook in try await hooks.hooks(of: customer, in: records)
        where hook.events.contains(event.kind.rawValue) && event.timeMs >= hook.createdMs {
            let id = HookEventID(timeMs: event.timeMs, number: event.number).description
            let stored = HookStoredEvent.with {
                ($0.customer, $0.hook, $0.timeMs, $0.number) = (customer, hook.hook, event.timeMs, event.number)
                $0.json = Data(event.json(id: id).utf8)
                $0.share = HookQueue.share(
                    of: event.account.isEmpty ? event.device : event.account, isAlarm: event.kind == .alarm)
            }
            try await records.write(stored)
            let reply = try await queue(hook.hook, of: customer).ask(
                HookWritten.with {
                    ($0.customer, $0.hook, $0.share) = (customer, hook.hook, stored.share)
                    ($0.byteCount, $0.alarm) = (UInt32(clamping: stored.json.count), event.kind == .alarm)
                })
            if reply.dropped {
                try await records.erase([stored])
                dropped.increment()
            } else {
                written.increment()
            }
        }
    }

    /// Sends a batch of a hook's events, and reports the result to the queue.
    func deliver(_ delivery: HookDeliver) async {
        // Too little of the delivery's time is left. The queue schedules another one.
        guard now + Int64(configuration.timeout.milliseconds) < delivery.untilMs else { return }
        var report = HookDelivered()
        do throws(ApusError) {
            report = try await deliverBatch(delivery)
        } catch {
            report.failure = "\(error.code.number) \(error.message)"
        }
        if !report.failure.isEmpty {
            failed.increment()
            limited.log(
                .warning, "The endpoint of a hook did not take events",
                metadata: [
                    LogKey.reason: "\(report.failure)", "apus.hook": "\(delivery.customer)/\(delivery.hook)",
                ])
        }
        // If this report is lost, the next attempt begins when the time of this one is over.
        _ = try? await queue(delivery.hook, of: delivery.customer).ask(report, call: .once())
    }

    private func deliverBatch(_ delivery: HookDeliver) async throws(ApusError) -> HookDelivered {
        let (name, customer, limit) = (delivery.hook, delivery.customer, HookBatch.count(delivery.batch))
        let found = try await records.events(of: name, of: customer, limit: limit)
        let hook = try await records.hook(name, of: customer)
        let oldest = max(now - Int64(configuration.keepTime.milliseconds), hook?.createdMs ?? 0)
        // Events of a deleted hook are not delivered, even if a new hook has its name.
        let old = found.filter { hook == nil || max($0.timeMs, $0.waitsSinceMs) < oldest }
        let batch = found.filter { hook != nil && max($0.timeMs, $0.waitsSinceMs) >= oldest }
        if let hook, let reason = try await refusal(of: batch, by: hook) {
            try await records.erase(old)
            expired.increment(by: old.count)
            if batch.count == 1 { try await putAside(batch[0], reason: reason) }
            return HookDelivered(refused: batch, expired: old, reason: reason)
        }
        try await records.erase(found)
        delivered.increment(by: batch.count)
        expired.increment(by: old.count)
        return HookDelivered(batch, expired: old, more: found.count == limit)
    }

    /// Sends events to their endpoint.
    ///
    /// - Returns: nil if the endpoint accepted the events; otherwise the reason for which it refused the events
    ///   themselves. To repeat the request would have no effect then.
    /// - Throws: as ``post(_:id:to:_:answerByteCountMax:)``; 21005 if the endpoint did not accept the request for
    ///   another reason.
    private func refusal(of batch: [HookStoredEvent], by hook: HookStored) async throws(ApusError) -> String? {
        guard let first = batch.first, let last = batch.last else { return nil }
        let body = JSON.object([
            ("customer", .string(hook.customer)), ("hook", .string(hook.hook)),
            ("events", .array(batch.map { .raw(String(decoding: $0.json, as: UTF8.self)) })),
        ])
        let id = "\(first.timeMs)-\(first.number)-\(last.timeMs)-\(last.number)"
        let answer = try await post(body, id: id, to: hook, configuration.timeout, answerByteCountMax: nil)
        guard EventConfiguration.refusals.contains(answer.status) else {
            try answer.checkTaken()
            return nil
        }
        return "the server answered with the status \(answer.status)"
    }

    /// Puts an event aside. Drops it if there is no room, or if the hook was deleted in between.
    private func putAside(_ event: HookStoredEvent, reason: String) async throws(ApusError) {
        let isKept = try await queue(event.hook, of: event.customer)
            .ask(HookRefused.with { $0.share = event.share }, call: .once()).kept
        guard isKept else {
            try await records.erase([event])
            return dropped.increment()
        }
        guard try await records.putAside(event, reason: reason, at: now) else {
            dropped.increment()
            return await noteCleared([], event.hook, of: event.customer)
        }
        putAside.increment()
    }

    // MARK: - Raw data (IV-D12)

    /// Sends raw data to a handler or a hook, and returns its answer.
    ///
    /// - Throws: 12004 for an app whose token is restricted to certain devices: temporary access does not include the
    ///   integrator's servers (IV-A3); 20011 if the device is disabled; 21031 if the URL is not valid; 21008 if the
    ///   data is too long; 21005 if there is no such server or it fails; 21002 after the time-out; 10007 if too many
    ///   messages wait for an answer.
    private func send(_ request: ClientSendToServerRequest, _ call: ClientCall) async throws(ApusError) -> [UInt8] {
        guard call.session.role != .app || call.session.allowedDevices == nil else {
            throw ApusError(.notAllowed, "the token is for the use of certain devices only")
        }
        let (name, path) = try Self.parts(of: request.url)
        guard request.data.count <= EventConfiguration.dataByteCountMax else {
            throw ApusError(
                .messageTooLarge, "raw data has at most \(EventConfiguration.dataByteCountMax) bytes")
        }
        let message = ServerMessage(
            path: path, data: Array(request.data), account: call.session.account, access: call.session.access,
            device: call.session.device)
        let asked = request.timeoutMs == 0 ? EventConfiguration.answerTimeMax : .milliseconds(Int(request.timeoutMs))
        // The server's time ends early enough to answer the client before its deadline.
        let left = max(try call.timeLeft() - .milliseconds(100), .milliseconds(10))
        return try await send(message, to: name, timeout: min(asked, left))
    }

    /// Sends a message to a server of the integrator for a service, and returns the answer.
    ///
    /// - Parameters:
    ///   - url: `NAME` or `NAME/PATH`, as in the request `servers.send`.
    ///   - id: the same for every repetition of the message.
    /// - Throws: as the request `servers.send`.
    package func send(
        _ data: [UInt8], to url: String, account: AccountID, access: AccessID, device: DeviceID?, id: String,
        timeout: Duration
    ) async throws(ApusError) -> [UInt8] {
        let (name, path) = try Self.parts(of: url)
        let message = ServerMessage(path: path, data: data, account: account, access: access, device: device)
        return try await send(message, to: name, id: id, timeout: timeout)
    }

    /// - Parameter id: nil: a random one.
    private func send(
        _ message: ServerMessage, to name: String, id: String? = nil, timeout: Duration
    ) async throws(ApusError) -> [UInt8] {
        let customer = try await customer(of: message)
        let account = message.account.rawValue
        guard slots.withLock({ $0.take(customer: customer, account: account) }) else {
            refused.increment()
            throw ApusError(.overloaded, "too many messages to servers wait for an answer")
        }
        defer { slots.withLock { $0.giveBack(customer: customer, account: account) } }
        do throws(ApusError) {
            let answer = try await self.answer(
                to: message, from: name, customer, id: id, min(timeout, EventConfiguration.answerTimeMax))
            guard answer.count <= EventConfiguration.dataByteCountMax else {
                throw ApusError(.passToServerFailed, "the server's answer is too long")
            }
            answered.increment()
            return answer
        } catch {
            unanswered.increment()
            throw error
        }
    }

    private func answer(
        to message: ServerMessage, from name: String, _ customer: String, id: String?, _ timeout: Duration
    ) async throws(ApusError) -> [UInt8] {
        if let handler = ports.all(ServerHandler.self).first(where: { $0.name == name }) {
            return try await handler.handle(message)
        }
        guard let hook = try await hooks.hooks(of: customer, in: records).first(where: { $0.hook == name }),
            hook.messages
        else { throw ApusError(.passToServerFailed, "there is no server of this name") }
        let id = id ?? Hexadecimal.text((0..<16).map { _ in UInt8.random(in: 0...(.max)) })
        let body = JSON.object([
            ("id", .string(id)), ("customer", .string(customer)), ("hook", .string(name)),
            ("path", .string(message.path)), ("account", .string(message.account.rawValue)),
            ("access", .string(message.access.rawValue)), ("device", .string(message.device?.rawValue ?? "")),
            ("data", .string(Data(message.data).base64EncodedString())),
        ])
        do throws(ApusError) {
            let answer = try await post(
                body, id: id, to: hook, timeout, answerByteCountMax: EventConfiguration.dataByteCountMax)
            try answer.checkTaken()
            return answer.body
        } catch {
            limited.log(
                .warning, "A server did not take raw data",
                metadata: Logger.facts(of: error).merging(["apus.hook": "\(customer)/\(name)"]) { $1 })
            guard error.code == .passToServerFailed || error.code == .notAllowed else { throw error }
            // The message may reveal the integrator's internal network.
            throw ApusError(.passToServerFailed)
        }
    }

    /// - Throws: 21031.
    package static func parts(of url: String) throws(ApusError) -> (name: String, path: String) {
        let parts = url.split(separator: "/", maxSplits: 1, omittingEmptySubsequences: false).map(String.init)
        let path = parts.count > 1 ? parts[1] : ""
        guard let first = parts.first, AccessID(rawValue: first) != nil,
            path.wholeMatch(of: /[A-Za-z0-9._~\/-]{0,200}/) != nil
        else {
            throw ApusError(.badParameter, "the URL is NAME or NAME/PATH, with a path of plain characters")
        }
        return (first, path)
    }

    /// The customer whose servers the sender of a message reaches.
    ///
    /// - Throws: 20011 if the sender is a disabled device.
    private func customer(of message: ServerMessage) async throws(ApusError) -> String {
        if let device = message.device {
            let record = try await sessions.record(of: device)
            try record?.checkEnabled()
            return record?.customer?.rawValue ?? CustomerID.none
        }
        return try await sessions.user(message.account)?.customer.rawValue ?? CustomerID.none
    }
}

extension EntityCall {
    /// A call that is carried out once, even if it is sent again.
    static func once() -> EntityCall {
        var call = EntityCall()
        call.request = RequestID(high: .random(in: 0...(.max)), low: .random(in: 0...(.max)))
        return call
    }
}

extension HookStored {
    /// The valid secrets, the newest first.
    func secrets(at seconds: Int64) -> [[UInt8]] {
        [Array(secret)] + (formerUntilS > seconds ? [Array(formerSecret)] : [])
    }
}

extension ClientHook {
    init(_ hook: HookStored, _ queue: HookQueue) {
        self.init()
        (customer, self.hook, url, events) = (hook.customer, hook.hook, hook.url, hook.events)
        (messages, changed) = (hook.messages, hook.changedMs / 1000)
        (waiting, dropped, failed, failure) = (queue.waiting, queue.dropped, queue.failed, queue.failure)
    }
}
