import ApusContract
import ApusCore
import ApusGrammar

/// The names of a home that a language model may use, within their bounds.
///
/// Pure value.
struct GuestNames: Sendable {
    /// Those of devices, the first name of each device before second ones. A name of several kinds is there for each.
    private let devices: [(name: String, kind: VoiceKind)]
    /// Those of areas, in the same order.
    let areas: [String]

    init(_ home: VoiceHome) {
        devices = Self.bounded(
            home.content.devices.map { ($0.names, VoiceKind(rawValue: $0.kind) ?? .other) },
            countMax: GuestConfiguration.namesMax, byteCountMax: GuestConfiguration.nameByteCountMax)
        areas = Self.bounded(
            home.content.areas.map { ($0.names, VoiceKind.other) },
            countMax: GuestConfiguration.areaNamesMax, byteCountMax: GuestConfiguration.areaByteCountMax
        ).map(\.name)
    }

    /// The names of the devices of these kinds, each once.
    func names(of kinds: Set<VoiceKind> = Set(VoiceKind.allCases)) -> [String] {
        var known: Set<ExactText> = []
        return devices.compactMap { name, kind in
            kinds.contains(kind) && known.insert(ExactText(name)).inserted ? name : nil
        }
    }

    private static func bounded(
        _ all: [(names: [String], kind: VoiceKind)], countMax: Int, byteCountMax: Int
    ) -> [(name: String, kind: VoiceKind)] {
        var (found, byteCount): ([(name: String, kind: VoiceKind)], Int) = ([], 0)
        var known: Set<ExactText> = []
        for rank in 0..<VoiceHome.namesMax {
            for (names, kind) in all where rank < names.count {
                let name = names[rank]
                guard known.insert(ExactText("\(kind.rawValue)/\(name)")).inserted else { continue }
                guard found.count < countMax, byteCount + name.utf8.count <= byteCountMax else { continue }
                byteCount += name.utf8.count
                found.append((name, kind))
            }
        }
        return found
    }
}
