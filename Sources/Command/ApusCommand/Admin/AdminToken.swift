import ApusCore
import ApusLocal
import ApusSessions
import ArgumentParser
import Foundation

/// `apus admin token`: a signed token for a device, an app or an operator (IV-A6).
struct AdminToken: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "token", abstract: "Sign a token for a device, an app or an operator.",
        discussion: "--dir is the directory of `apus admin pki`, or the state directory of a local cluster.")

    @Option(help: "Where token.key is.")
    var dir = StateDirectory.defaultPath
    @Option(help: "The cluster's name; a local cluster's own where --dir is one.")
    var cluster: String?
    @Option(help: "device, app or admin.")
    var role: String
    @Option(help: "The account that the bearer belongs to.")
    var account = LocalCluster.account.rawValue
    @Option(help: "The bearer's own id; a device's is its device id where none is given.")
    var access: String?
    @Option(
        name: .customLong("device"), help: "The device that the bearer is; for an app, one that it may reach (several)."
    )
    var devices: [String] = []
    @Option(help: "The token's id, by which it can be revoked; a random one where none is given.")
    var id: String?
    @Option(help: "How long it is valid: 90s, 15m, 12h, 30d.")
    var ttl = "1h"

    func run() async throws {
        let state = StateDirectory(dir)
        let isLocalCluster = FileManager.default.fileExists(atPath: state.markFile)
        let name = try cluster ?? (isLocalCluster ? try state.requireMark().cluster : "local")
        let pki = isLocalCluster ? state.pki : PKIDirectory(path: state.path)
        print(try await pki.mint(try claims(cluster: name)))
    }

    private func claims(cluster: String) throws -> TokenClaims {
        guard let role = Session.Role(rawValue: role) else {
            throw ValidationError("--role must be device, app or admin")
        }
        let devices = try devices.map { try DeviceID.argument($0, "--device") }
        guard role != .device || devices.count == 1 else {
            throw ValidationError("a device's token needs exactly one --device")
        }
        let access =
            access ?? (role == .device ? devices[0].rawValue : "\(role.rawValue)-\(UUID().uuidString.prefix(8))")
        return TokenClaims(
            access: try .argument(access, "--access"),
            account: try .argument(account, "--account"), role: role,
            device: role == .device ? devices[0] : nil, devices: role == .device || devices.isEmpty ? nil : devices,
            issuedAt: Int64(Date().timeIntervalSince1970), lifetime: try Self.lifetime(ttl),
            cluster: try .argument(cluster, "--cluster"), id: id ?? UUID().uuidString)
    }

    private static func lifetime(_ text: String) throws -> Duration {
        guard let span = span(text) else {
            throw ValidationError("--ttl must be a span such as 90s, 15m, 12h or 30d, not '\(text)'")
        }
        return span
    }

    /// A span such as 90s, 15m, 12h or 30d; nil for other text.
    static func span(_ text: String) -> Duration? {
        let units: [Character: Int] = ["s": 1, "m": 60, "h": 3600, "d": 86_400]
        guard let last = text.last, let unit = units[last], let count = Int(text.dropLast()),
            (1...1_000_000).contains(count)
        else { return nil }
        return .seconds(count * unit)
    }
}
