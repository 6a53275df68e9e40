import ApusCore

/// Lists objects of a directory in the order of their names, without reading folders that have none of the page.
///
/// A folder counts as its name with a `/`, so that `a/b`, `a/b-1`, `a/b/c` are in this order.
struct ObjectWalk {
    let files: any ObjectFiles
    let prefix: String
    let after: String?
    let countMax: Int
    private(set) var found: [ObjectEntry] = []
    /// There are more.
    private(set) var isCut = false

    init(files: any ObjectFiles, prefix: String, after: String?, countMax: Int) {
        (self.files, self.prefix, self.after, self.countMax) = (files, prefix, after, countMax)
    }

    private struct Item {
        /// The whole name, for a folder with a `/` at its end.
        var name: String
        var path: String
        var isFolder: Bool
    }

    /// Walks a folder.
    ///
    /// - Parameter name: what its objects' names begin with.
    mutating func walk(_ path: String, name: String = "") throws(FileFailure) {
        let entries: [ObjectFolderEntry]
        do throws(FileFailure) { entries = try files.list(path) } catch {
            // Another process has removed it because it was empty.
            guard !name.isEmpty, try files.status(path) == nil else { throw error }
            return
        }
        let items = entries.compactMap { Self.item($0, in: path, name: name) }.sorted { $0.name.precedes($1.name) }
        for item in items {
            guard !isCut else { return }
            if item.isFolder {
                guard item.name.begins(with: prefix) || prefix.begins(with: item.name), !isBehind(item.name) else {
                    continue
                }
                try walk(item.path, name: item.name)
            } else {
                try add(item)
            }
        }
    }

    /// True if all names of the folder are at or before ``after``.
    private func isBehind(_ folder: String) -> Bool {
        guard let after else { return false }
        return folder.precedes(after) && !after.begins(with: folder)
    }

    private mutating func add(_ item: Item) throws(FileFailure) {
        guard item.name.begins(with: prefix), after.map({ $0.precedes(item.name) }) ?? true,
            let name = ObjectName(checking: item.name)
        else { return }
        guard let status = try files.status(item.path), !status.isFolder else { return }
        guard found.count < countMax else {
            isCut = true
            return
        }
        found.append(
            ObjectEntry(
                name: name, byteCount: status.byteCount,
                modifiedMilliseconds: status.modifiedNanoseconds / 1_000_000))
    }

    /// Nil for what is no object and no folder of objects.
    private static func item(_ entry: ObjectFolderEntry, in path: String, name: String) -> Item? {
        guard !entry.name.begins(with: ".") else { return nil }
        let isNamedFolder = entry.name.hasSuffix(ObjectFolders.suffix)
        guard isNamedFolder == entry.isFolder else { return nil }
        let part = isNamedFolder ? entry.name.dropLast() + "/" : entry.name[...]
        return Item(name: name + part, path: "\(path)/\(entry.name)", isFolder: isNamedFolder)
    }
}
