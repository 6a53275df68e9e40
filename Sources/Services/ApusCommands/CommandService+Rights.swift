import ApusCluster
package import ApusCore
package import ApusSessions
import SwiftProtobuf

// Senders that may have lost their right to a device (IV-B10), or their token (IV-A6): the node reads who may use the
// device, and sends that to the queues (docs/sharing.md, docs/authority.md).

extension CommandService {
    private static let rightsTimeout = Duration.seconds(1)
    /// Queues that are answered at once, such as after a loss of power where many devices are.
    private static let checkingMax = 32

    /// Commands that wait end with 8003 if their accounts may not use the device any more. Those of a disabled device
    /// are left as they are, since it receives none.
    ///
    /// If it fails, such as because the owner of the device does not answer, they end when they would be sent.
    package func related(_ device: DeviceID, _ change: DeviceRelationChange, before: DeviceRecord?) async {
        guard change.endsRights(before: before), let rights = try? await self.rights(to: device) else { return }
        for queue in CommandQueue.allCases {
            _ = try? await ref(queue, device).ask(rights, timeout: Self.rightsTimeout)
        }
    }

    /// Answers queues, until the task is cancelled.
    func checkRights() async { await checks.run(atMost: Self.checkingMax) { await self.answer($0) } }

    /// A queue that is not answered asks again.
    private func answer(_ check: CommandCheck) async {
        guard let device = DeviceID(rawValue: check.device), var rights = try? await self.rights(to: device) else {
            return
        }
        for sender in check.senders {
            do throws(ApusError) {
                try sessions.check(Authority(sender))
                rights.valid.append(sender)
            } catch {
                rights.ended.append(.with { ($0.sender, $0.code) = (sender, error.code.number) })
            }
        }
        _ = try? await ref(check.live ? .live : .kept, device).ask(rights, timeout: Self.rightsTimeout)
    }

    /// Nil if the device is disabled: its commands wait until it is enabled.
    private func rights(to device: DeviceID) async throws(ApusError) -> CommandRights? {
        let readMs = view.clock.wallMilliseconds()
        guard let record = try await devices.record(of: device) else { return .with { $0.readMs = readMs } }
        guard !record.isDisabled else { return nil }
        return CommandRights.with {
            $0.readMs = readMs
            $0.controlling = record.shares.filter(\.control).map(\.account.rawValue)
            if let account = record.account { $0.controlling.append(account.rawValue) }
            $0.viewing = record.shares.filter { !$0.control }.map(\.account.rawValue)
        }
    }

    /// Leaves out commands of accounts that may not use the device any more, such as its former owner.
    func visible(
        _ entries: [CommandEntry], of device: DeviceID, to account: AccountID
    ) async throws(ApusError) -> [CommandEntry] {
        let isOfOthers = entries.contains { !$0.account.isEmpty && $0.account != account.rawValue }
        guard isOfOthers else { return entries }
        let record = try await devices.record(of: device)
        return entries.filter { entry in
            guard let sender = AccountID(rawValue: entry.account) else { return true }
            return record?.right(of: sender) != nil
        }
    }
}

extension Authority {
    init(_ sender: CommandSender) {
        let token = sender.token
        self.init(
            account: AccountID(unchecked: sender.account), identities: [sender.access],
            token: TokenMark(tag: token.tag, issuedAt: token.issuedS, expires: token.expiresS),
            isRestricted: token.restricted)
    }
}

extension CommandToken {
    init(_ authority: Authority) {
        self.init()
        let token = authority.token
        (tag, issuedS, expiresS) = (token.tag, token.issuedAt, token.expires)
        restricted = authority.isRestricted
    }
}
