import ApusCore
import ApusLocal
import ApusNode
import ApusSessions
import ArgumentParser
import Foundation
import NIOCore
import NIOFoundationCompat
import NIOHTTP1

/// Which relays an operator's command is for: those of a local cluster, or one that runs alone.
struct RelayOperatorOptions: ParsableArguments {
    @Option(
        name: .customLong("dir"), help: "A local cluster's state directory; the default where no --config is given.")
    var directory: String?

    @Option(help: "The configuration of `apus relay serve` of a relay that runs alone on this machine.")
    var config: String?

    @Option(help: "HOST:PORT of a node's HTTP listener; it wants an operator's token.")
    var server: String?

    @Option(help: "The file that the token of --server is in; - asks for it. Else the environment's APUS_ADMIN_TOKEN.")
    var tokenFile: String?

    func validate() throws {
        guard [directory, config, server].compactMap({ $0 }).count <= 1 else {
            throw ValidationError("give one of --dir, --config and --server")
        }
        guard tokenFile == nil || server != nil else { throw ValidationError("--token-file is for --server") }
    }

    /// - Throws: 10021, 10022 where files are not valid, 21025 where the relay has no HTTP listener.
    func relays() async throws -> [RelayOperator] {
        if let config { return [try RelayOperator(configuration: config)] }
        if let server {
            guard let address = HostPort(server) else { throw ValidationError("\(server) is not HOST:PORT") }
            guard
                let token = try SecretText.given(nil, file: tokenFile, variable: "APUS_ADMIN_TOKEN", name: "token")
            else { throw ValidationError("an operator's token is expected: --token-file, or APUS_ADMIN_TOKEN") }
            return [RelayOperator(name: server, address: address, token: token)]
        }
        let local = try LocalCluster(directory: directory ?? StateDirectory.defaultPath)
        let token = try await local.mint(role: .admin, access: AccessID(unchecked: "operator"))
        return local.mark.nodes.filter { $0.relay != nil }.compactMap { node in
            HostPort(node.http).map { RelayOperator(name: "\(node.name)", address: $0, token: token) }
        }
    }
}

/// One relay, asked over its HTTP listener as an operator.
struct RelayOperator: Sendable {
    private static let timeout = Duration.seconds(5)

    let name: String
    let address: HostPort
    let token: String

    init(name: String, address: HostPort, token: String) {
        self.name = name
        self.address = address
        self.token = token
    }

    /// The relay of a `relay-only` configuration, on this machine.
    ///
    /// - Throws: 10021, 10022 where files are not valid, 21025 where it has no HTTP listener.
    init(configuration file: String) throws(ApusError) {
        let node = try RelayNodeConfiguration(file: file)
        guard let http = node.http else {
            throw ApusError(.unavailable, "the relay of \(file) has no HTTP listener: set `http`")
        }
        self.init(name: "relay", address: http, token: try node.relayOperatorToken())
    }

    /// - Throws: 21022, 10005 where it does not answer, 21025 with what it said where it refuses.
    func ask<Answer: Decodable>(_ method: HTTPMethod, _ path: String, as type: Answer.Type) async throws -> Answer {
        let answer = try await HTTPFetch.send(method, path, to: address, token: token, timeout: Self.timeout)
        guard (200...299).contains(answer.status) else {
            throw ApusError(.unavailable, "\(name) refuses (\(answer.status)): \(String(buffer: answer.body))")
        }
        guard let value = try? JSONDecoder().decode(type, from: Data(buffer: answer.body)) else {
            throw ApusError(.malformed, "\(name) does not answer as a relay")
        }
        return value
    }

    /// The query of a selection; empty for all.
    static func query(user: String?, id: UInt32?) -> String {
        if let id { return "?id=\(id)" }
        guard let user else { return "" }
        return "?user=\(user.addingPercentEncoding(withAllowedCharacters: .alphanumerics) ?? "")"
    }
}
