package import ApusContract
package import ApusCore
import ApusEvents
import ApusGrammar
import Foundation
import SwiftProtobuf

/// What the devices and areas of an account are called, and what can be done with them by voice.
///
/// Pure value.
package struct VoiceHome: Sendable {
    package static let areasMax = 64
    package static let devicesMax = 256
    /// The names of an area or of a device.
    package static let namesMax = 8
    /// The names of all areas and devices together.
    package static let allNamesMax = 768
    package static let nameByteCountMax = 64
    package static let controlsMax = 16
    /// The longest home as a message, in bytes.
    package static let byteCountMax = 96 << 10

    package let content: ClientVoiceHome
    /// By id.
    private let entries: [String: ClientVoiceDevice]
    private let areas: [String: ClientVoiceArea]

    /// A home without devices.
    package init() { self.init(stored: ClientVoiceHome()) }

    /// - Parameter content: a home that was checked when it was written.
    package init(stored content: ClientVoiceHome) {
        self.content = content
        entries = Dictionary(content.devices.map { ($0.id, $0) }) { first, _ in first }
        areas = Dictionary(content.areas.map { ($0.id, $0) }) { first, _ in first }
    }

    /// Checks a home that a client has written.
    ///
    /// - Throws: 21031 with the id of what is not valid; 10002 over ``byteCountMax``.
    package init(checking content: ClientVoiceHome) throws(ApusError) {
        guard (try? content.serializedData().count) ?? .max <= Self.byteCountMax else {
            throw ApusError(.frameTooLarge, "a home has at most \(Self.byteCountMax) bytes")
        }
        if !content.timeZone.isEmpty, TimeZone(identifier: content.timeZone) == nil {
            throw ApusError(.badParameter, "the time zone is not known")
        }
        for server in [content.skill, content.before, content.after] where !server.isEmpty {
            _ = try EventService.parts(of: server)
        }
        if !content.language.isEmpty { _ = try DialogLanguage(checking: content.language) }
        guard content.areas.count <= Self.areasMax, content.devices.count <= Self.devicesMax else {
            throw ApusError(.badParameter, "a home has at most \(Self.areasMax) areas and \(Self.devicesMax) devices")
        }
        self.init(stored: content)
        guard areas.count == content.areas.count, entries.count == content.devices.count else {
            throw ApusError(.badParameter, "two areas, or two devices, have the same id")
        }
        let names = content.areas.reduce(0) { $0 + $1.names.count } + content.devices.reduce(0) { $0 + $1.names.count }
        guard names <= Self.allNamesMax else {
            throw ApusError(.badParameter, "a home has at most \(Self.allNamesMax) names")
        }
        for area in content.areas { try Self.check(area.id, area.names) }
        for device in content.devices { try check(device) }
    }

    private func check(_ device: ClientVoiceDevice) throws(ApusError) {
        try Self.check(device.id, device.names)
        _ = try DeviceID(checking: device.device, "the device of \(device.id)")
        guard device.area.isEmpty || areas[device.area] != nil else {
            throw ApusError(.badParameter, "\(device.id): the home has no area of this id")
        }
        guard VoiceKind(rawValue: device.kind) != nil else {
            let kinds = VoiceKind.allCases.map(\.rawValue).joined(separator: ", ")
            throw ApusError(.badParameter, "\(device.id): the kind is one of \(kinds)")
        }
        guard device.controls.count <= Self.controlsMax, Set(device.controls.map(\.what)).count == device.controls.count
        else {
            throw ApusError(
                .badParameter, "\(device.id): at most \(Self.controlsMax) controls, each of another what")
        }
        for control in device.controls { _ = try VoiceControl(control, of: device.id) }
    }

    private static func check(_ id: String, _ names: [String]) throws(ApusError) {
        guard DeviceID(rawValue: id) != nil else {
            throw ApusError(.badParameter, "an id has 1 to 63 letters, digits, '-', '_' or '.'")
        }
        let areNames = names.allSatisfy { (1...nameByteCountMax).contains($0.utf8.count) }
        guard (1...namesMax).contains(names.count), areNames else {
            throw ApusError(
                .badParameter, "\(id): 1 to \(namesMax) names are expected, each of at most \(nameByteCountMax) bytes")
        }
    }

    // MARK: - Look-ups

    func entry(_ id: String) -> ClientVoiceDevice? { entries[id] }
    func area(_ id: String) -> ClientVoiceArea? { areas[id] }

    /// The devices of a kind, in an area or in all areas.
    func entries(of kind: String, in area: String?) -> [ClientVoiceDevice] {
        content.devices.filter { $0.kind == kind && (area == nil || $0.area == area) }
    }

    /// The entry of a listening device: the first one with an area, otherwise the first one.
    func speaker(_ device: DeviceID) -> ClientVoiceDevice? {
        let own = content.devices.filter { $0.device == device.rawValue }
        return own.first { !$0.area.isEmpty } ?? own.first
    }

    /// The clock of the home.
    var timeZone: TimeZone { TimeZone(identifier: content.timeZone) ?? .gmt }

    /// The lists that the sentences name.
    var lists: [GrammarList] {
        let names = content.devices.flatMap { device in
            let facts = VoiceKind(rawValue: device.kind).map { kind in
                [kind.fact, GrammarFact(HassIntents.factName, HassIntents.domain(of: kind))]
            }
            return device.names.map { GrammarValue($0, value: device.id, context: facts ?? []) }
        }
        let areas = content.areas.flatMap { area in area.names.map { GrammarValue($0, value: area.id) } }
        func values(of kinds: Set<VoiceKind>) -> [GrammarValue] {
            content.devices.filter { VoiceKind(rawValue: $0.kind).map(kinds.contains) ?? false }
                .flatMap { device in device.names.map { GrammarValue($0, value: device.id) } }
        }
        return [
            GrammarList(VoiceList.name.rawValue, names), GrammarList(VoiceList.area.rawValue, areas),
            GrammarList(VoiceList.contact.rawValue, values(of: Self.callable)),
            GrammarList(VoiceList.screen.rawValue, values(of: [.display])),
        ]
    }

    /// What can be called: doorbells, intercoms and screens.
    static let callable: Set<VoiceKind> = [.camera, .door, .lock, .display, .speaker]
}

extension ClientVoiceDevice {
    /// The first name, for replies.
    var name: String { names.first ?? id }

    /// A control, if the device has it.
    func control(_ what: VoiceControl.What) -> VoiceControl? {
        controls.first { $0.what == what.rawValue }.flatMap { try? VoiceControl($0, of: id) }
    }
}
