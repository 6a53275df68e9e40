import ApusCore
import ApusLocal
import ApusNode
import ApusNodeConfiguration
import ApusSessions
import ApusStorage
import ArgumentParser
import Foundation

/// `apus admin revoke`: revokes tokens before they expire, and ends everything that was opened with them (IV-A6).
struct AdminRevoke: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "revoke", abstract: "Revoke a token, the tokens of an identity, or those of an account.",
        discussion: """
            Use --token-id, --identity or --all. Within a second every node ends the sessions, streams and relay \
            allocations of the tokens and refuses the tokens, also after a restart. Tokens of an identity or \
            an account that are issued from the next second on are valid. Works on the machine with the records, \
            whether the cluster is running or not.
            """)

    @OptionGroup var directory: DirectoryOption
    @Option(name: .customLong("config"), help: "Read a node's configuration, instead of --dir.")
    var config: String?
    @Option(help: "Revoke the token with this id, its claim jti.")
    var tokenID: String?
    @Option(help: "Revoke the tokens of this identity: an access id, or a device's id.")
    var identity: String?
    @Flag(help: "Revoke all tokens of the account.")
    var all = false
    @Option(help: "Set the account of --identity and --all.")
    var account = LocalCluster.account.rawValue
    @Option(help: "Revoke only tokens issued before this, in Unix seconds; for --identity and --all. Default: now.")
    var before: Int64?
    @Option(help: "Keep the revocation for this long: the longest lifetime of the tokens. 90s, 15m, 12h, 30d.")
    var keep = "400d"
    @OptionGroup var output: OutputOptions

    private struct Report: Encodable {
        var token_id: String?
        var identity: String?
        /// The account of the identity, or the account whose tokens were all revoked.
        var account: String?
        /// Until when the revocation is kept, in Unix seconds.
        var expires: Int64
    }

    func validate() throws {
        guard (tokenID == nil ? 0 : 1) + (identity == nil ? 0 : 1) + (all ? 1 : 0) == 1 else {
            throw ValidationError("use one of --token-id, --identity and --all")
        }
    }

    func run() async throws {
        let configuration = try RecordsOption.configuration(config, directory)
        let store = try await NodeRecords.open(configuration)
        let now = Int64(Date().timeIntervalSince1970)
        let expires = now + (try lifetime().components.seconds)
        try await SessionRecords(store).revoke(
            RevocationRecord(try subject(now: now), expires: expires), wallSeconds: now)
        await store.close()
        try output.show(
            Report(
                token_id: tokenID, identity: identity, account: tokenID == nil ? account : nil, expires: expires),
            ["Revoked. It takes effect at every running node within a second."])
    }

    private func subject(now: Int64) throws(ApusError) -> RevocationRecord.Subject {
        if let tokenID { return .token(TokenMark.tag(of: tokenID)) }
        let account = try AccountID(checking: account, "--account")
        let before = before ?? now + 1
        guard let identity else { return .account(account, issuedBefore: before) }
        _ = try AccessID(checking: identity, "--identity")
        return .identity(identity, account, issuedBefore: before)
    }

    private func lifetime() throws(ApusError) -> Duration {
        guard let span = AdminToken.span(keep) else {
            throw ApusError(.badParameter, "--keep must be a duration such as 90s, 15m, 12h or 30d, not '\(keep)'")
        }
        return span
    }
}
