package import ApusClientAPI
package import ApusCluster
package import ApusContract
package import ApusCore
package import ApusSessions
package import ApusStorage
import ApusThings
import CoreMetrics
import Logging
package import ServiceLifecycle
import SwiftProtobuf
import Synchronization

/// Events of devices and accounts (IV-D10), raw data to servers (IV-D12), and the hooks of integrators
/// (docs/events.md).
///
/// An event is published to the topic `events/ACCOUNT` of each account that may use the device, and written for the
/// hooks of the device's integrator. The device receives its answer after both.
///
/// Concurrency model: any thread. `Mutex`es guard the limits and the cached hooks.
package final class EventService: NodeService, Service {
    package static let name = "Events and hooks"
    package static let records = HookRecords.catalogue

    /// The kind of the topics; the key is the account.
    package static let topicKind = "events"
    /// The events of an account that are kept for a week, for clients that were disconnected.
    static let retention = TopicRetention(eventsMax: 64, byteCountMax: 48 << 10, idleTime: .seconds(7 * 86_400))

    let configuration: EventConfiguration
    let records: HookRecords
    let sessions: SessionRecords
    let topics: TopicService
    let poster: ServerPoster
    let ports: ServicePorts
    let limited: LogLimiter
    let hooks: HookCache
    let slots: Mutex<ServerSlots>
    private let entities: EntityRegistry
    private let clock: ClusterClock
    private let view: ClusterView
    private let reports: Mutex<RateLimiter<String>>
    private let deliveries: WorkQueue<HookDeliver>
    private let reported = Counter(label: "apus_events_published_total")
    let written = Counter(label: "apus_hook_events_total", dimensions: [("result", "written")])
    let dropped = Counter(label: "apus_hook_events_total", dimensions: [("result", "dropped")])
    let expired = Counter(label: "apus_hook_events_total", dimensions: [("result", "expired")])
    let delivered = Counter(label: "apus_hook_events_total", dimensions: [("result", "delivered")])
    let putAside = Counter(label: "apus_hook_events_total", dimensions: [("result", "put_aside")])
    let failed = Counter(label: "apus_hook_attempts_failed_total")
    let answered = Counter(label: "apus_server_messages_total", dimensions: [("result", "answered")])
    let unanswered = Counter(label: "apus_server_messages_total", dimensions: [("result", "failed")])
    let refused = Counter(label: "apus_server_messages_total", dimensions: [("result", "refused")])

    /// The most deliveries that wait for a task. Another one is discarded, and its queue schedules it again.
    private static let deliveriesMax = 4096
    /// How long a change of rights is offered to hooks that cannot be written. Later changes of the device wait for it.
    private static let hookTime = Duration.seconds(5)
    /// How often this node looks for events whose queues have lost their state.
    private static let lookInterval = Duration.seconds(15)
    /// The most batches that this node delivers at once.
    private static let deliveringMax = 128

    package init(_ configuration: EventConfiguration, of node: NodeContext) {
        (self.configuration, view, entities, topics) = (configuration, node.view, node.entities, node.topics)
        (ports, limited, clock) = (node.ports, node.limited, node.view.clock)
        poster = ServerPoster(configuration, clock: clock)
        (records, sessions) = (HookRecords(store: node.records), SessionRecords(node.records))
        hooks = HookCache()
        slots = Mutex(ServerSlots(countMax: configuration.sendingMax))
        reports = Mutex(RateLimiter(configuration.perMinute, per: .seconds(60), burst: configuration.perMinute))
        let deliveries = WorkQueue<HookDeliver>(countMax: Self.deliveriesMax)
        self.deliveries = deliveries
        let kind = HookKind(
            node: node.view.local.name,
            bounds: HookBounds(
                countMax: configuration.queueMax, byteCountMax: configuration.queueByteCountMax,
                failedMax: configuration.failedMax),
            sendingTime: Int64(configuration.timeout.milliseconds) + 2000)
        node.runtime.register(kind.definition)
        node.dispatcher.onTell(HookDeliver.self) { deliveries.add($0) }
        node.ports.provide(self)
        node.ports.provide(self, as: (any ThingObserver).self)
        node.ports.provide(self, as: (any RelationPublisher).self)
    }

    package var work: [any Service] { [poster, self] }

    /// Registers the requests and the topic.
    package func add(to api: inout ClientAPI) {
        api.on(ClientReportEventRequest.self, byteCountMax: 16 << 10, orderKey: { _ in "events.report" }) {
            [self] request, call throws(ApusError) in
            try await report(request, call)
            return ClientReportEventResponse()
        }
        api.on(ClientNotifyAccountRequest.self, byteCountMax: 16 << 10) { [self] request, call throws(ApusError) in
            let account = try AccountID(checking: request.account, "the account")
            try await notify(account, request.name, json: request.json, device: nil, request: call.request)
            return ClientNotifyAccountResponse()
        }
        addHookRequests(to: &api)
        api.add(
            PublishedTopics(
                Self.topicKind,
                "Alarms of an account's devices, changes of who may use them, and notices; the key is the account.",
                events: [ClientEventKind(ClientAccountEvent.self)], retention: Self.retention, on: topics
            ) { key, session throws(ApusError) in
                let isOwn = session.role == .app && session.account.rawValue == key
                guard session.allowedDevices == nil, session.role == .admin || isOwn else {
                    throw ApusError(
                        .notAllowed, "an app hears the events of its own account, with a token for all of it")
                }
            })
    }

    /// The time of the cluster's clock, in Unix milliseconds.
    var now: Int64 { clock.wallMilliseconds() }

    func queue(_ hook: String, of customer: String) -> EntityRef<EntityCell<HookQueue>> {
        entities.ref(EntityCell<HookQueue>.self, HookKind.address(hook, of: customer))
    }

    // MARK: - Events

    /// Publishes an event that a device reports.
    ///
    /// - Throws: 10007 after too many events, 21031 if the event is not valid, 8003 if the device is bound to no
    ///   account, 20011 if it is disabled.
    private func report(_ request: ClientReportEventRequest, _ call: ClientCall) async throws(ApusError) {
        guard let device = call.session.device else { throw ApusError(.notAllowed, "a device reports its events") }
        guard reports.withLock({ $0.take(device.rawValue, at: .now()) }) else {
            throw ApusError(.overloaded, "a device reports at most \(configuration.perMinute) events in a minute")
        }
        let event = try ClientAccountEvent(.alarm, name: request.name, json: request.json, device: device, at: now)
        guard let record = try await sessions.record(of: device), let owner = record.account else {
            throw ApusError(.illegalRelation, "the device is bound to no account")
        }
        try record.checkEnabled()
        try await publish(
            event, to: [owner] + record.shares.map(\.account), owner: owner,
            customer: record.customer?.rawValue ?? CustomerID.none, request: call.request)
    }

    /// Sends a notice of topic `system` to an account, and to the hooks of its customer.
    ///
    /// - Parameter request: identifies the notice if the caller may repeat it.
    /// - Throws: 21031 if the name or the JSON is not valid, otherwise as ``EntityRef/ask(_:timeout:call:)``.
    package func notify(
        _ account: AccountID, _ name: String, json: String, device: DeviceID?, request: RequestID?
    ) async throws(ApusError) {
        let event = try ClientAccountEvent(.system, name: name, json: json, device: device, at: now)
        let customer = try await sessions.user(account)?.customer.rawValue ?? CustomerID.none
        try await publish(event, to: [account], owner: account, customer: customer, request: request)
    }

    /// Publishes an event to the topics and the hooks. Both have it when this returns.
    private func publish(
        _ event: ClientAccountEvent, to accounts: [AccountID], owner: AccountID, customer: String,
        request: RequestID?
    ) async throws(ApusError) {
        // The topics come first. They need no record store, so a full store does not hold back an alarm. If the write
        // for a hook fails and the device reports the event as a new request, the accounts receive it twice.
        try await publish(event, to: accounts, owner: owner, request: request)
        try await enqueue(HookEvent(event, owner), customer: customer)
    }

    /// Publishes an event to the topic of the owner, and then to those of its guests.
    private func publish(
        _ event: ClientAccountEvent, to accounts: [AccountID], owner: AccountID, request: RequestID?
    ) async throws(ApusError) {
        for account in [owner] + accounts.filter({ $0 != owner }) where accounts.contains(account) {
            let topic = ClientTopic(kind: Self.topicKind, key: account.rawValue)
            guard topic.description.utf8.count <= ClientTopic.byteCountMax else { continue }
            // Events of a foreign device must not displace the events of the account's own devices.
            let sender = TopicSender(event.device, isForeign: account != owner)
            try await topics.publish(event, to: topic, sender: sender, request: request)
        }
        reported.increment()
    }

    /// Passes the end of a call to the hooks of the customers of its parties. The events are durable when this returns.
    ///
    /// - Parameters:
    ///   - call: the id of the call. It determines the id of the event.
    ///   - reason: the name of the event.
    ///   - json: the record of the call.
    ///   - devices: the devices that took part.
    ///   - accounts: the accounts that took part.
    ///   - time: the end of the call, in Unix milliseconds.
    /// - Throws: 10021, 10005 and 10010 if the events of a hook cannot be written.
    package func ended(
        call: String, reason: String, json: String, devices: [DeviceID], accounts: [AccountID], at time: Int64
    ) async throws(ApusError) {
        guard try await hooks.isUsed(in: records) else { return }
        var customers: Set<String> = []
        for device in devices {
            customers.insert(try await sessions.record(of: device)?.customer?.rawValue ?? CustomerID.none)
        }
        for account in accounts {
            customers.insert(try await sessions.user(account)?.customer.rawValue ?? CustomerID.none)
        }
        let event = HookEvent(
            kind: .call, name: reason, device: devices.first?.rawValue ?? "", account: accounts.first?.rawValue ?? "",
            data: json, timeMs: time, number: StableHash.hash(call))
        for customer in customers { try await enqueue(event, customer: customer) }
    }

    /// Delivers the events of the hooks whose queues are at this node, until the node stops.
    package func run() async throws {
        await cancelWhenGracefulShutdown {
            await withDiscardingTaskGroup { group in
                group.addTask { await self.deliveries.run(atMost: Self.deliveringMax) { await self.deliver($0) } }
                group.addTask { await self.findForgotten() }
            }
        }
    }

    /// Wakes queues that lost their state, and removes the events of deleted hooks: once after the start of the node,
    /// and then every ``lookInterval``.
    private func findForgotten() async {
        var pause = Duration.seconds(Double.random(in: 1...3))
        while (try? await Task.sleep(for: pause)) != nil {
            pause = Self.lookInterval
            var last: (customer: String, hook: String)?
            while !Task.isCancelled, let found = try? await records.hookWithEvents(after: last) {
                last = found
                guard view.isLocal(HookKind.address(found.hook, of: found.customer).shard) else { continue }
                let message = HookFound.with { ($0.customer, $0.hook) = found }
                _ = try? await queue(found.hook, of: found.customer).ask(message)
            }
        }
    }
}

extension EventService: RelationPublisher {
    /// Notifies the accounts of a change of rights, and the hooks. A repetition has the same ids: the topics and the
    /// endpoints of the hooks recognize it.
    package func publish(_ relation: PublishedRelation) async throws(ApusError) {
        let (change, before, device) = (relation.change, relation.before, relation.device)
        let (name, other, json): (String, AccountID?, String) =
            switch change {
            case .bind(let account): ("bound", account, "")
            case .handOver(to: let account, _): (account == nil ? "unbound" : "transferred", account, "")
            case .share(let share), .invite(let share):
                (Self.isInvited(share.account, by: change, before) ? "invited" : "shared", share.account, share.json)
            case .accept(let account):
                ("shared", account, before?.invitations.first { $0.account == account }?.json ?? "")
            case .unshare(let account): ("unshared", account, #"{"account":"\#(account)"}"#)
            case .assign: ("", nil, "")
            case .disable(let isDisabled): (isDisabled ? "disabled" : "enabled", nil, "")
            }
        guard !name.isEmpty, let owner = before?.account ?? other else { return }
        var accounts = [owner] + [other].compactMap(\.self).filter { $0 != owner }
        switch change {
        case .handOver, .disable: accounts += (before?.shares.map(\.account) ?? []).filter { $0 != other }
        case .bind, .share, .invite, .accept, .unshare, .assign: break
        }
        if let other, !mayHear(other, change, by: owner, before) { accounts.removeAll { $0 == other } }
        // The texts come from names of accounts, and are valid.
        guard
            let event = try? ClientAccountEvent(.share, name: name, json: json, device: device, at: relation.timeMs)
        else { return }
        let number = StableHash.hash("\(device)/\(relation.number)")
        let request = RequestID(high: StableHash.hash(device.rawValue), low: relation.number).derived(0)
        try await publish(event, to: accounts, owner: owner, request: request)
        do throws(ApusError) {
            let customer = before?.customer?.rawValue ?? CustomerID.none
            try await enqueue(HookEvent(event, owner, number: number), customer: customer)
        } catch {
            let age = Duration.milliseconds(now - relation.timeMs)
            // After a clock has gone back, nobody knows how old it is.
            guard age >= Self.hookTime || age < .zero || error.isRecordStoreFull else { throw error }
            limited.log(
                .warning, "A change of rights was not passed to hooks",
                metadata: Logger.facts(of: error).merging([LogKey.device: "\(device)"]) { $1 })
        }
    }
}

extension EventService {
    /// Whether the other account is notified, too. An invited account that has not accepted is notified of the
    /// invitation, but not of its end. The invitations by one account have the same rate limit as the events of a
    /// device.
    private func mayHear(
        _ other: AccountID, _ change: DeviceRelationChange, by owner: AccountID, _ before: DeviceRecord?
    ) -> Bool {
        if Self.isInvited(other, by: change, before) {
            return reports.withLock { $0.take("invitations/\(owner)", at: .now()) }
        }
        if case .unshare = change { return before?.shares.contains { $0.account == other } ?? false }
        return true
    }

    /// Whether the account must accept the share first.
    private static func isInvited(
        _ account: AccountID, by change: DeviceRelationChange, _ before: DeviceRecord?
    ) -> Bool {
        guard case .invite = change else { return false }
        return !(before?.shares.contains { $0.account == account } ?? false)
    }
}

extension DeviceShare {
    fileprivate var json: String { #"{"account":"\#(account)","control":\#(control)}"# }
}

extension EventService: ThingObserver {
    package func changed(
        _ change: ClientPropertyChanged, of device: DeviceID, at time: Int64, dataSince: UInt64
    ) async throws(ApusError) {
        // A device that has another account since has no hook to which the change may go.
        guard try await hooks.isUsed(in: records), let record = try await sessions.record(of: device),
            record.dataSince <= dataSince
        else { return }
        var event = HookEvent(
            kind: .property, name: change.path, device: device.rawValue, account: record.account?.rawValue ?? "",
            data: change.json, timeMs: time)
        event.version = change.version
        // Events of one millisecond are in the order of their numbers. A repetition has the same number.
        event.number = change.version << 40 | StableHash.hash(device.rawValue) >> 24
        try await enqueue(event, customer: record.customer?.rawValue ?? CustomerID.none)
    }
}
