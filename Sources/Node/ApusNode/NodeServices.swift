import ApusChannels
import ApusClientAPI
import ApusCore
import ApusMediaAccess
import ApusNodeConfiguration
import ApusSessions
import ServiceLifecycle

/// The services of a node, created in the order of ``ProgramServices``.
///
/// Isolation: immutable; each service guards its own state.
struct NodeServices: Sendable {
    private let all: [any NodeService]

    /// Creates them. They find the channels, and the way to media, by type. Called once, before the node is a member.
    ///
    /// - Throws: what ends the node's start: 10018 if a service is missing.
    init(
        _ configurations: ServiceConfigurations, of node: NodeContext, _ channels: ChannelService,
        _ media: MediaAccess
    ) throws(ApusError) {
        node.ports.provide(channels)
        node.ports.provide(media)
        var made: [any NodeService] = []
        for service in ProgramServices.all { made.append(try Self.make(service, configurations, of: node)) }
        all = made
        node.sessions.observe(
            node.ports.all((any RelationObserver).self), publishers: node.ports.all((any RelationPublisher).self))
    }

    private static func make<S: NodeService>(
        _ service: S.Type, _ configurations: ServiceConfigurations, of node: NodeContext
    ) throws(ApusError) -> any NodeService {
        try S(configurations[service], of: node)
    }

    /// Adds their requests and topics.
    func add(to api: inout ClientAPI) {
        for service in all { service.add(to: &api) }
    }

    /// Reads their files again, and returns what uses them.
    ///
    /// - Throws: 10022 if one cannot use its files. Nothing has changed then.
    func prepareReload() async throws(ApusError) -> @Sendable () -> Void {
        var uses: [@Sendable () -> Void] = []
        for service in all { uses.append(try await service.prepareReload()) }
        return { [uses] in for use in uses { use() } }
    }

    /// What works by itself.
    var work: [any Service] { all.flatMap(\.work) }
}
