import ApusAnswering
import ApusCalls
import ApusChannels
import ApusClientAPI
import ApusCluster
import ApusCommands
import ApusCore
import ApusEvents
import ApusFirmware
import ApusMediaAccess
import ApusNodeConfiguration
import ApusSessions
import ApusThings
import ApusWebhooks
import Logging
import NIOCore
import ServiceLifecycle

extension NewMessage {
    /// What its notice says (docs/answering-machine.md).
    fileprivate var json: String {
        JSON.object([
            ("message", .string(id)), ("machine", .string(machine?.rawValue ?? "")),
            ("callerDevice", .string(callerDevice?.rawValue ?? "")), ("callerAccount", .string(callerAccount)),
        ]).text
    }
}

/// What waits for a device, and then its accounts, learn who may use it now (docs/authority.md).
///
/// Isolation: immutable; each service guards its own state.
private struct RelationObservers: RelationObserver {
    let commands: CommandService
    let things: ThingService
    let events: EventService

    func record(of device: DeviceID) async -> DeviceRecord? { await events.record(of: device) }

    func related(_ device: DeviceID, _ change: DeviceRelationChange, before: DeviceRecord?) async {
        // Anybody may ask for the end of a share that does not exist.
        if before?.isChanged(by: change) ?? true, change.endsRights {
            await commands.rightsChanged(of: device)
            let after = await events.record(of: device)
            await things.rightsChanged(of: device, dataSince: after?.dataSince ?? 0)
        }
        await events.related(device, change, before: before)
    }
}

/// The services of devices, accounts, messages and calls, created in the order of their dependencies.
///
/// Isolation: immutable; each service guards its own state.
struct NodeServices: Sendable {
    let calls: CallService
    private let products: ProductService
    private let things: ThingService
    private let commands: CommandService
    private let webhooks: WebhookSender
    private let poster: NodePoster
    private let events: EventService
    private let firmware: FirmwareService
    private let answering: AnsweringService

    /// Registers their kinds of entities, and their messages between nodes. Created once, before the node is a member.
    init(
        _ node: NodeContext, _ view: ClusterView, _ sessions: SessionService, _ channels: ChannelService,
        _ runtime: EntityRuntime, _ dispatcher: NodeDispatcher, carrying carried: [any NodeService],
        group: any EventLoopGroup, limited: LogLimiter, log: Logger
    ) {
        let (configuration, entities, records) = (node.configuration, node.entities, node.records)
        products = ProductService(
            records: records, entities: entities, productsMax: configuration.accounts.productsMax,
            wallMilliseconds: { view.clock.wallMilliseconds() })
        poster = NodePoster(configuration.events, clock: view.clock)
        let handlers = carried.reduce(into: [:]) { $0.merge($1.serverHandlers(of: node)) { $1 } }
        events = EventService(
            configuration.events, view, entities, node.topics, records, runtime, dispatcher, handlers: handlers,
            poster: poster, limited: limited)
        commands = CommandService(
            configuration.commands, view, entities, sessions, products, records, runtime, dispatcher)
        things = ThingService(
            sessions: sessions, topics: node.topics, products: products, reader: commands, observer: events)
        sessions.observe(RelationObservers(commands: commands, things: things, events: events))
        webhooks = WebhookSender(configuration.push, limited: limited) { view.clock.wallSeconds() }
        answering = AnsweringService(
            configuration.answering, view, records: records, channels: channels, group: group, limited: limited
        ) { [events] message throws(ApusError) in
            // The same for each repetition, so the account has one notice of it.
            let request = RequestID(
                high: StableHash.hash(message.id), low: StableHash.hash(message.id, seed: 1))
            try await events.notify(
                message.account, "message", json: message.json, device: message.machine ?? message.callerDevice,
                request: request)
        }
        calls = CallService(
            configuration.calls, view, entities, sessions, records, runtime, dispatcher,
            pusher: NodePusher(webhooks), machines: answering, log: log
        ) { [events] call throws(ApusError) in
            let parties = Dictionary(grouping: call.parties, by: \.kind)
            try await events.ended(
                call: call.id, reason: call.reason, json: call.json,
                devices: (parties[.device] ?? []).map { DeviceID(unchecked: $0.id) },
                accounts: (parties[.account] ?? []).map { AccountID(unchecked: $0.id) }, at: call.endedMs)
        }
        firmware = FirmwareService(
            configuration.firmware, view, records: records, sessions: sessions, things: things, limited: limited)
    }

    /// Who may publish and play what, with those of them that have channels of their own.
    func media(_ sessions: SessionService, _ channels: ChannelService) -> MediaAccess {
        let media = MediaAccess(sessions: sessions, channels: channels)
        media.register(calls, for: .call)
        return media
    }

    /// Registers their requests and topics.
    func add(to api: inout ClientAPI) {
        things.add(to: &api)
        products.add(to: &api)
        commands.add(to: &api)
        calls.add(to: &api)
        answering.add(to: &api)
        events.add(to: &api)
        firmware.add(to: &api)
    }

    /// Those that work by themselves.
    var running: [any Service] { [commands, webhooks, calls, answering, poster, events, firmware] }
}
