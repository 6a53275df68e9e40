import ApusClient
import ApusContract
import ApusCore
import ArgumentParser
import SwiftProtobuf

/// A device that asks for a token, as `--json` has it.
private struct AuthorizationReport: Encodable {
    var user_code: String
    var device: String
    var client: String
    var state: String

    init(_ authorization: ClientAuthorization) {
        (user_code, device, client) = (authorization.userCode, authorization.device, authorization.client)
        state =
            switch authorization.state {
            case .pending: "pending"
            case .approved: "approved"
            case .refused: "refused"
            case .unspecified, .UNRECOGNIZED: ""
            }
    }
}

/// `apus authorize CODE`
struct AuthorizeCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "authorize", abstract: "Show or decide about a device that asks for a token with a code.",
        discussion: """
            Without --approve and --refuse, the device is only shown. Approve a code only if you see it on a device of \
            yours: the device will belong to your account.
            """)
    @OptionGroup var session: SessionOptions
    @Argument(help: "The code that the device shows, such as WDJB-MJHT.") var code: String
    @Flag(help: "Bind the device to the account, and let it have a token.") var approve = false
    @Flag(help: "Refuse it a token.") var refuse = false

    func validate() throws {
        guard !approve || !refuse else { throw ValidationError("--approve and --refuse exclude each other.") }
    }

    func run() async throws {
        try await session.run { [output = session.output, code, approve, refuse] session throws(ApusError) in
            let decided: ClientAuthorization
            let sentence: String
            if approve {
                decided = try await session.approve(code)
                sentence = "\(decided.device) may fetch its token."
            } else if refuse {
                decided = try await session.refuse(code)
                sentence = "\(decided.device) is refused."
            } else {
                decided = try await session.authorization(of: code)
                sentence = "\(decided.userCode) is shown by \(decided.device) (\(decided.client))."
            }
            try output.show(AuthorizationReport(decided), [sentence])
        }
    }
}
