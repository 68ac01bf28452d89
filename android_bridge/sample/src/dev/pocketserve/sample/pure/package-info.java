/** What the app does without Android: tested on a desktop's Java. Nothing here imports android.*. */
package dev.pocketserve.sample.pure;
