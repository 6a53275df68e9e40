import ApusAnswering
import ApusCalls
import ApusChannels
import ApusClientAPI
import ApusCluster
import ApusCommands
import ApusCore
import ApusEvents
import ApusFirmware
import ApusNodeConfiguration
import ApusSessions
import ApusThings
import ApusWebhooks
import Logging
import NIOCore
import ServiceLifecycle

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
        sessions.observe(events)
        commands = CommandService(configuration.commands, view, entities, sessions, products, runtime, dispatcher)
        things = ThingService(
            sessions: sessions, topics: node.topics, products: products, reader: commands, observer: events)
        webhooks = WebhookSender(configuration.push, limited: limited) { view.clock.wallSeconds() }
        answering = AnsweringService(
            configuration.answering, view, records: records, channels: channels, group: group, limited: limited)
        calls = CallService(
            configuration.calls, view, entities, sessions, records, runtime, dispatcher,
            pusher: NodePusher(webhooks), machines: answering, log: log)
        firmware = FirmwareService(
            configuration.firmware, view, records: records, sessions: sessions, things: things, limited: limited)
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
