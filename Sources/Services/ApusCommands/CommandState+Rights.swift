import ApusCore
import SwiftProtobuf

/// Senders that may have lost their right to the device since their commands were accepted (IV-B10).
///
/// **When a right is checked.** The right of a sender is checked before its command is accepted, and counts for
/// ``CommandConfiguration/rightTime``. A command that is sent later, because the device was away or others came first,
/// or that is sent to another connection, waits for another check. The queue asks its node for it, which reads the
/// record of the device and answers with ``CommandRights``. If the answer is lost, the queue asks again. The node of a
/// client that changes who may use the device sends the same message, so that commands end at once.
///
/// The check is also one of the sender's token (docs/authority.md): ``CommandCheck`` names the senders, and the answer
/// says whose tokens are valid. A message that does not say that ends commands, and lets none be sent.
///
/// **What a lost right ends.** Commands that were not sent have failed with 8003, 12001 or 12002, and are never carried
/// out. Those that were sent may have been carried out, and an answer that comes late replaces the failure. One that
/// the device has acknowledged goes on, unless it would have to be sent again.
extension CommandState {
    /// The accounts that may use the device now.
    package mutating func apply(
        _ rights: CommandRights, _ configuration: CommandConfiguration, at now: Int64, _ effects: inout Effects
    ) {
        let readMs = rights.readMs == 0 ? now : min(rights.readMs, now)
        var index = open.startIndex
        while index < open.endIndex {
            let entry = open[index]
            guard entry.rightMs <= readMs || entry.rightMs > now else {
                // It was accepted, and its right was checked, after these were read.
                index += 1
                continue
            }
            if let failure = entry.lostRight(by: rights) {
                if entry.status == .acknowledged, entry.checkMs == 0 {
                    index += 1
                } else {
                    _ = end(index, .failed, failure, at: now, &effects, isAssumed: entry.status != .queued)
                }
                continue
            }
            guard entry.isTokenChecked(by: rights) else {
                index += 1
                continue
            }
            // Nothing changes for a command that does not wait for this.
            if entry.checkMs > 0 || (!listeners.isEmpty && entry.isRightOld(configuration, at: now)) {
                (open[index].rightMs, open[index].checkMs) = (readMs, 0)
                if entry.checkMs > 0, entry.isRepeated(at: now) { repeatNow(index, at: now, &effects) }
            }
            index += 1
        }
        advance(configuration, at: now, &effects)
    }

    /// The senders of the commands that have not ended, each once: one check is for all of them.
    package var senders: [CommandSender] {
        var found: [CommandSender] = []
        for entry in open where entry.hasToken && !found.contains(entry.from) {
            found.append(entry.from)
        }
        return found
    }

    /// Sends to all connections what waited for the check of a right.
    private mutating func repeatNow(_ index: Int, at now: Int64, _ effects: inout Effects) {
        guard !listeners.isEmpty else { return }
        if open[index].status == .sent {
            open[index].sentMs = now
            open[index].deliveries += 1
        }
        for listener in listeners { effects.deliveries.append((listener, open[index])) }
    }

    /// False if the right of the sender has to be checked before the command is sent: the queue then asks for that.
    mutating func isChecked(
        _ index: Int, _ configuration: CommandConfiguration, at now: Int64, _ effects: inout Effects
    ) -> Bool {
        let entry = open[index]
        guard entry.isRightOld(configuration, at: now), !entry.account.isEmpty else { return true }
        askForRights(index, configuration, at: now, &effects)
        return false
    }

    /// Asks for the check of a right, unless it is being checked.
    mutating func askForRights(
        _ index: Int, _ configuration: CommandConfiguration, at now: Int64, _ effects: inout Effects
    ) {
        let checkMs = open[index].checkMs
        // The clock may have been set back.
        guard checkMs == 0 || checkMs > now || now >= open[index].checkAgainMs(configuration) else { return }
        open[index].checkMs = max(1, now)
        effects.needsRights = true
    }
}

extension CommandEntry {
    /// A node of an earlier release accepted it without an account: it is not checked.
    private func isAllowed(by rights: CommandRights) -> Bool {
        account.isEmpty || rights.controlling.contains(account) || (isRead && rights.viewing.contains(account))
    }

    /// Why it must not be carried out; nil if these rights do not end it.
    fileprivate func lostRight(by rights: CommandRights) -> ApusError? {
        guard isAllowed(by: rights) else {
            return ApusError(.illegalRelation, "the sender has lost its right to the device")
        }
        guard hasToken, let ended = rights.ended.first(where: { $0.sender == from }) else { return nil }
        return ApusError(ErrorCode(number: ended.code), "the sender's token was revoked, or has expired")
    }

    /// A node of an earlier release accepted it without a token: that is not checked.
    fileprivate func isTokenChecked(by rights: CommandRights) -> Bool { !hasToken || rights.valid.contains(from) }

    var from: CommandSender {
        .with { ($0.account, $0.access, $0.token) = (account, sender, token) }
    }

    /// The check of its sender's right was too long ago, or the clock was set back since.
    fileprivate func isRightOld(_ configuration: CommandConfiguration, at now: Int64) -> Bool {
        now - rightMs > Int64(configuration.rightTime.milliseconds) || rightMs > now
    }

    /// A new connection of the device receives it: the device may not know what it had acknowledged.
    func isRepeated(at now: Int64) -> Bool { status == .acknowledged || (status == .sent && now < expiresMs) }

    /// When its queue asks again for the check of a right.
    func checkAgainMs(_ configuration: CommandConfiguration) -> Int64 {
        checkMs + max(1, Int64(configuration.resendAfter.milliseconds))
    }
}
