import ApusContract
import ApusCore
import SwiftProtobuf

/// A link with which one browser signs in, once (docs/sign-in.md).
struct SignInLink: Encodable, Sendable {
    /// A secret until it is used. The code is the fragment, which a browser sends to no server.
    var url: String
    /// The time in which it can be used.
    var seconds: UInt32

    enum CodingKeys: String, CodingKey {
        case url
        case seconds = "expires_in_seconds"
    }

    /// Asks a cluster for a link.
    ///
    /// - Parameters:
    ///   - role: app or admin.
    ///   - devices: the only ones that the browser may reach; empty: all of the account.
    /// - Throws: as ``ClusterAPI/ask(_:)``.
    static func make(
        _ api: ClusterAPI, role: String, account: String, devices: [String] = []
    ) async throws(ApusError) -> SignInLink {
        let code = try await api.ask(
            ClientCreateSignInCodeRequest.with { ($0.role, $0.account, $0.devices) = (role, account, devices) })
        return SignInLink(
            url: "\(api.tls == nil ? "http" : "https")://\(api.address)/#code=\(code.code)",
            seconds: code.expiresInSeconds)
    }

    /// What a command prints.
    var lines: [String] {
        ["Open this address in a browser. It signs one browser in, once, within \(seconds / 60) minutes:", "  \(url)"]
    }
}
