package import ApusContract
package import ApusCore
import SwiftProtobuf

/// The versions and groups of a product (IV-E1).
///
/// **Versions** are in their order, and there is one of each, also where it could be written in two ways (`1.5` and
/// `1.5.0`). A version is a draft until it is active for the first time, and can only be active when its image is
/// sealed.
///
/// **Limits.** ``releasesMax`` and ``groupsMax``.
///
/// Pure value.
extension FirmwareProduct {
    /// Versions of a product; one more is refused with 10007.
    package static let releasesMax = 16
    /// Groups of a product; one more is refused with 10007.
    package static let groupsMax = 32
    /// Devices of a group; one more is refused with 10007.
    package static let groupDevicesMax = 1000

    package var isEmpty: Bool { releases.isEmpty && groups.isEmpty }

    package func index(of version: FirmwareVersion) -> Int? {
        releases.firstIndex { FirmwareVersion($0.version) == version }
    }

    /// - Throws: 8002 if there is no such version.
    package func release(_ version: FirmwareVersion) throws(ApusError) -> FirmwareRelease {
        guard let index = index(of: version) else { throw ApusError(.targetUnknown, "no such version") }
        return releases[index]
    }

    /// Adds a version as a draft.
    ///
    /// - Parameter isSealed: the image is not in the cluster, so there is nothing to upload.
    /// - Throws: 10030 if there is one of this version, 10007 beyond ``releasesMax``.
    package mutating func add(
        _ manifest: FirmwareManifest, image: UInt64, isSealed: Bool
    ) throws(ApusError) {
        guard index(of: manifest.version) == nil else {
            throw ApusError(.versionConflict, "there is another image of this version")
        }
        guard releases.count < Self.releasesMax else {
            throw ApusError(.overloaded, "the product has \(Self.releasesMax) versions; delete one of them first")
        }
        let new = FirmwareRelease.with {
            ($0.version, $0.image, $0.size) = (manifest.version.description, image, manifest.size)
            ($0.from, $0.sealed) = (manifest.from?.description ?? "", isSealed)
            ($0.state, $0.revision) = (.draft, 1)
        }
        let place = releases.firstIndex { FirmwareVersion($0.version).map { $0 > manifest.version } ?? false }
        releases.insert(new, at: place ?? releases.endIndex)
    }

    /// - Throws: 8002 if there is no such version.
    package mutating func remove(_ version: FirmwareVersion) throws(ApusError) -> FirmwareRelease {
        guard let index = index(of: version) else { throw ApusError(.targetUnknown, "no such version") }
        return releases.remove(at: index)
    }

    /// Notes that the image is complete.
    /// - Throws: 8002 if there is no such version of this image.
    package mutating func seal(_ version: FirmwareVersion, image: UInt64) throws(ApusError) {
        guard let index = index(of: version), releases[index].image == image else {
            throw ApusError(.targetUnknown, "no such version")
        }
        guard !releases[index].sealed else { return }
        releases[index].sealed = true
        releases[index].revision += 1
    }

    /// Sets the rule of a version.
    ///
    /// - Parameters:
    ///   - ifRevision: the revision that the version must have; 0: any.
    ///   - tally: the outcomes until now. They do not count for stopping if the version was a draft or stopped before.
    /// - Throws: 8002 for an unknown version or group; 10030 for another revision, for an image that is not sealed, or
    ///   for a draft that was none before; 21031 for a state that is none.
    package mutating func rollOut(
        _ version: FirmwareVersion, _ rule: FirmwareRule, ifRevision: UInt64, tally: FirmwareCount
    ) throws(ApusError) {
        guard let index = index(of: version) else { throw ApusError(.targetUnknown, "no such version") }
        var release = releases[index]
        guard ifRevision == 0 || ifRevision == release.revision else {
            throw ApusError(.versionConflict, "the version has revision \(release.revision)")
        }
        // A version can be stopped whatever has become of its groups.
        for group in rule.groups where rule.state == .active && !groups.contains(where: { $0.name == group }) {
            throw ApusError(.targetUnknown, "a group is not known")
        }
        switch rule.state {
        case .draft where release.state != .draft:
            throw ApusError(.versionConflict, "a version that was rolled out is no draft any more; stop it")
        case .active where !release.sealed:
            throw ApusError(.versionConflict, "the image is not sealed: upload all of it, and seal it")
        case .draft, .active, .paused, .stopped: break
        case .unspecified, .UNRECOGNIZED: throw ApusError(.badParameter, "a state is expected")
        }
        if rule.state == .active, release.state == .draft || release.state == .stopped {
            (release.installedBefore, release.failedBefore) = (tally.installed, tally.failed)
            release.activation = release.revision + 1
        }
        (release.state, release.percentage, release.groups) = (rule.state, rule.percentage, rule.groups)
        (release.stopFailures, release.stopFailurePercent) = (rule.stopFailures, rule.stopFailurePercent)
        guard release != releases[index] else { return }
        release.revision += 1
        releases[index] = release
    }

    /// Stops a version whose failures require it.
    /// - Returns: whether it was stopped by this.
    package mutating func stopIfFailing(_ version: FirmwareVersion, tally: FirmwareCount) -> Bool {
        guard let index = index(of: version), releases[index].state == .active,
            releases[index].mustStop(tally)
        else { return false }
        releases[index].state = .stopped
        releases[index].revision += 1
        return true
    }

    /// Notes a change of a group, and its size; nil removes it.
    /// - Throws: 10007 beyond ``groupsMax`` or ``groupDevicesMax``; 8002 if a group to remove is not known.
    package mutating func setGroup(_ name: String, count: Int?) throws(ApusError) {
        let index = groups.firstIndex { $0.name == name }
        guard let count else {
            guard let index else { throw ApusError(.targetUnknown, "no such group") }
            groups.remove(at: index)
            return
        }
        guard count <= Self.groupDevicesMax else {
            throw ApusError(.overloaded, "a group has at most \(Self.groupDevicesMax) devices")
        }
        guard let index else {
            guard groups.count < Self.groupsMax else {
                throw ApusError(.overloaded, "the product has \(Self.groupsMax) groups; delete one of them first")
            }
            let place = groups.firstIndex { $0.name > name } ?? groups.endIndex
            return groups.insert(.with { ($0.name, $0.count, $0.revision) = (name, UInt32(count), 1) }, at: place)
        }
        groups[index].count = UInt32(count)
        groups[index].revision += 1
    }
}

/// Which devices are offered a version, and when that ends by itself.
package struct FirmwareRule: Sendable, Hashable {
    package var state: FirmwareRollOutState
    /// 0 to 100.
    package var percentage: UInt32
    /// Names of groups; empty: all devices.
    package var groups: [String]
    /// 0: it never stops by itself.
    package var stopFailures: UInt32
    /// 0 to 100.
    package var stopFailurePercent: UInt32

    package init(
        state: FirmwareRollOutState, percentage: UInt32 = 100, groups: [String] = [], stopFailures: UInt32 = 0,
        stopFailurePercent: UInt32 = 0
    ) {
        (self.state, self.percentage, self.groups) = (state, percentage, groups)
        (self.stopFailures, self.stopFailurePercent) = (stopFailures, stopFailurePercent)
    }
}

/// Outcomes of a version, each device counted once.
package struct FirmwareCount: Sendable, Hashable {
    package var installed: UInt64
    package var failed: UInt64

    package init(installed: UInt64 = 0, failed: UInt64 = 0) { (self.installed, self.failed) = (installed, failed) }
}
