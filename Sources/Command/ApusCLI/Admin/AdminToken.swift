import ApusCore
import ApusLocal
import ApusSessions
import ArgumentParser
import Foundation

/// `apus admin token`: signs a token for a device, an app or an operator (IV-A6).
struct AdminToken: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "token", abstract: "Sign a token for a device, an app or an operator.",
        discussion: "--dir is the directory of `apus admin pki`, or the state directory of a local cluster.")

    @Option(help: "Read token.key from this directory.")
    var dir = StateDirectory.defaultPath
    @Option(help: "Set the cluster's name. Default: that of the local cluster in --dir.")
    var cluster: String?
    @Option(help: "Set the bearer's role: device, app or admin.")
    var role: String
    @Option(help: "Set the bearer's account.")
    var account = LocalCluster.account.rawValue
    @Option(help: "Set the bearer's access id. Default: the device id for a device, a random one otherwise.")
    var access: String?
    @Option(
        name: .customLong("device"), help: "Set the device's id; for an app, a device that it may access (repeatable)."
    )
    var devices: [String] = []
    @Option(help: "Set the token's id, by which it can be revoked. Default: a random id.")
    var id: String?
    @Option(help: "Set the token's lifetime: 90s, 15m, 12h, 30d.")
    var ttl = "1h"
    @OptionGroup var output: OutputOptions

    private struct Report: Encodable {
        /// The token's id, by which it can be revoked.
        var id: String?
        /// The bearer's access id.
        var access: String
        var token: String
    }

    func run() async throws {
        let state = StateDirectory(dir)
        let isLocalCluster = FileManager.default.fileExists(atPath: state.markFile)
        let name = try cluster ?? (isLocalCluster ? try state.requireMark().cluster : "local")
        let pki = isLocalCluster ? state.pki : PKIDirectory(path: state.path)
        let claims = try claims(cluster: name)
        let token = try await pki.mint(claims)
        try output.show(Report(id: claims.jti, access: claims.sub, token: token), [token])
    }

    private func claims(cluster: String) throws -> TokenClaims {
        guard let role = Session.Role(rawValue: role), role != .customer else {
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
            throw ValidationError("--ttl must be a duration such as 90s, 15m, 12h or 30d, not '\(text)'")
        }
        return span
    }

    /// Parses a duration such as 90s, 15m, 12h or 30d; nil for other text.
    static func span(_ text: String) -> Duration? {
        let units: [Character: Int] = ["s": 1, "m": 60, "h": 3600, "d": 86_400]
        guard let last = text.last, let unit = units[last], let count = Int(text.dropLast()),
            (1...1_000_000).contains(count)
        else { return nil }
        return .seconds(count * unit)
    }
}
