import ApusCalls
import ApusCore

/// A message that a machine has recorded, for the event that notifies its account.
struct VoiceMessageNotice: Sendable {
    /// The id of the message and of its call.
    var id: String
    /// The account that may read the message.
    var account: AccountID
    /// The device whose machine recorded it; nil for the machine of the account.
    var machine: DeviceID?
    /// The calling device; nil if an account called.
    var callerDevice: DeviceID?
    /// The calling account; empty if a device called.
    var callerAccount: String

    /// Returns nil for a message without an account.
    init?(_ message: AnsweringMessage) {
        guard let account = AccountID(rawValue: message.account) else { return nil }
        (id, self.account, callerAccount) = (message.call, account, message.callerAccount)
        let (devices, party) = (CallParty.device(DeviceID(unchecked: "")).name, message.party)
        machine = party.hasPrefix(devices) ? DeviceID(rawValue: String(party.dropFirst(devices.count))) : nil
        callerDevice = DeviceID(rawValue: message.callerDevice)
    }

    /// The content of the event (docs/answering-machine.md).
    var json: String {
        JSON.object([
            ("message", .string(id)), ("machine", .string(machine?.rawValue ?? "")),
            ("callerDevice", .string(callerDevice?.rawValue ?? "")), ("callerAccount", .string(callerAccount)),
        ]).text
    }
}
